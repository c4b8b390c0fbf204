"""The results of `rankscope bench sweep`, read from its file as a table that has a chart."""

from __future__ import annotations

import json
from pathlib import Path

from rankscope.analysis.core.result import Column, Result
from rankscope.errors import NotATraceError

SWEEP = "sweep"


def read_sweep(path: Path) -> Result:
    """What `bench sweep --format json` (or its --chart) wrote, as a table."""
    columns = (
        Column("series", help="precision, hidden size, ranks"),
        Column("sequence", "count", "length"),
        Column("flop_s", "flop/s", "both matmuls of one rank, median"),
    )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        chart = content.get("chart", content)
        rows = [
            {"series": row["series"], "sequence": row["sequence"], "flop_s": row["matmul_tflop_s"] * 1e12}
            for row in chart["data"]["values"]
            if row["matmul_tflop_s"] is not None
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotATraceError(
            f"cannot read {path} as a sweep",
            why=f"It is not what bench sweep writes ({type(error).__name__}: {error}).",
            hint=f"Make one: rankscope bench sweep -s 2304,4608 --format json > {path.name}",
        ) from None
    return Result(SWEEP, "Matmul rate by sequence length", "every point of the sweep", columns, rows)
