"""Ceilings the user gives: as figures, or measured by `rankscope bench seqpar --json`."""

from __future__ import annotations

import json
from pathlib import Path

from rankscope.devices import Ceilings
from rankscope.errors import UsageError
from rankscope.units import parse_byte_rate, parse_flop_rate

DTYPES = ("bfloat16", "float16", "float8", "tf32", "float32", "float64", "int8")
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp8": "float8", "fp32": "float32",
          "fp64": "float64"}  # fmt: skip


def given_ceilings(peak: str | None = None, bandwidth: str | None = None) -> Ceilings:
    """'989TF', 'bf16=989TF,tf32=494TF' or the file of a benchmark; and '4.8TB/s'."""
    rate = parse_byte_rate(bandwidth) if bandwidth is not None else None
    said = (
        "--peak and --bandwidth"
        if peak and bandwidth
        else "--peak"
        if peak
        else "--bandwidth"
        if bandwidth
        else ""
    )
    if peak is None:
        return Ceilings(bandwidth=rate, source=said)
    if Path(peak).is_file():
        return Ceilings(_measured(Path(peak)), bandwidth=rate, source=f"measured in {Path(peak).name}")
    if peak.endswith(".json"):
        raise UsageError(
            f"--peak: there is no {peak}", why="No such file.", hint="rankscope bench seqpar --json > it"
        )
    peaks = {}
    for part in peak.split(","):
        name, equals, value = part.rpartition("=")
        if not equals:
            return Ceilings(any_peak=_rate(peak), bandwidth=rate, source=said)
        dtype = _SHORT.get(name.strip().lower(), name.strip().lower())
        if dtype not in DTYPES:
            raise UsageError(
                f"--peak: '{name}' is not a data type",
                why=f"There are: {', '.join(DTYPES)}.",
                hint="See: --help",
            )
        peaks[dtype] = _rate(value)
    return Ceilings(peaks, bandwidth=rate, source=said)


def _rate(text: str) -> float:
    rate = parse_flop_rate(text)
    if rate <= 0:
        raise UsageError(
            f"--peak {text} is no peak", why="It must be more than 0.", hint="Write it like 989TF."
        )
    return rate


def _measured(path: Path) -> dict[str, float]:
    """The best matrix product of a seqpar report, as the peak of its data type."""
    wrong = UsageError(
        f"{path} is no report of the benchmark",
        why="--peak takes a figure (989TF) or what `rankscope bench seqpar --json` wrote.",
        hint=f"Measure it: rankscope bench seqpar -p bfloat16 --json > {path}",
    )
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        config = report["config"]
        best = max(float(part["tflop_s"]) for part in report["parts"] if part["kind"] == "matmul")
        dtype = "tf32" if config["precision"] == "float32" and config["tf32"] else str(config["precision"])
    except (ValueError, KeyError, TypeError, OSError):
        raise wrong from None
    return {dtype: best * 1e12}
