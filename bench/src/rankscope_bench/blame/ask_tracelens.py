"""TraceLens's answer to a case, in its environment: the sheet straggler_summary of its multi-rank collective report.

"The rank with the lowest total_wait_time (and highest times_arrived_last) is the straggler", says TraceLens
(build_df_straggler_summary): the first row. It names a rank in every run. The share of collectives to which that rank
came last is its confidence; the cost is what the median of the others waited. The report has no causes.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from TraceLens.Reporting.generate_multi_rank_collective_report_pytorch import generate_collective_report


def ask(folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("rank-*.json.gz"))
    if not files:
        return {"who": "unknown", "why": "no Kineto trace"}
    with contextlib.redirect_stdout(sys.stderr):
        sheets = generate_collective_report(
            trace_glob=str(folder / "rank-*.json.gz"), rank_regex=r"rank-(?P<rank>\d+)", world_size=len(files)
        )
    table = sheets.get("straggler_summary")
    if table is None or table.empty:
        return {"who": "unknown", "why": "no straggler_summary"}
    first, others = table.iloc[0], table.iloc[1:]
    waited_us = float(others["total_wait_time_us"].median() - first["total_wait_time_us"])
    return {
        "who": "rank",
        "ranks": [int(first["rank"])],
        "ms_per_step": max(0.0, waited_us / 1000 / steps_of(files[0])),
        "confidence": float(first["pct_arrived_last"]) / 100,
    }


def steps_of(path: Path) -> int:
    import gzip

    return max(1, len(set(re.findall(rb'"ProfilerStep#(\d+)"', gzip.decompress(path.read_bytes())))))


if __name__ == "__main__":
    try:
        answer = ask(Path(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - what the tool cannot read is no answer
        answer = {"who": "unknown", "why": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(answer))
