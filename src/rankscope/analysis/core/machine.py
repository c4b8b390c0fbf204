"""What the user tells about the machine: peak rates of its devices, and times of collectives measured on it."""

from __future__ import annotations

import json
from dataclasses import field
from pathlib import Path

from rankscope.analysis.core.baseline import Baseline, load_baseline
from rankscope.devices import Ceilings
from rankscope.errors import UsageError
from rankscope.records import dataclass
from rankscope.units import parse_byte_rate, parse_flop_rate

DTYPES = ("bfloat16", "float16", "float8", "tf32", "float32", "float64", "int8")
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp8": "float8", "fp32": "float32",
          "fp64": "float64"}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """What is known of the machine besides the files of the run. It is part of a Scope, since figures depend on it."""

    ceilings: Ceilings = field(default_factory=Ceilings)
    """Peak rates that take precedence over the table of devices."""
    baseline: Baseline | None = None
    """Times of collectives measured without a training job."""


def machine_from(
    peak: str | None = None, bandwidth: str | None = None, baseline: str | Path | None = None
) -> Machine:
    """From the values of --peak, --bandwidth and --baseline."""
    return Machine(
        given_ceilings(peak, bandwidth) if peak or bandwidth else Ceilings(),
        load_baseline(Path(baseline)) if baseline else None,
    )


def given_ceilings(peak: str | None = None, bandwidth: str | None = None) -> Ceilings:
    """`peak`: '989TF', 'bf16=989TF,tf32=494TF' or a file of `rankscope bench seqpar --json`; `bandwidth`: '4.8TB/s'."""
    rate = parse_byte_rate(bandwidth) if bandwidth is not None else None
    said = " and ".join(name for name, value in (("--peak", peak), ("--bandwidth", bandwidth)) if value)
    if peak is None:
        return Ceilings(bandwidth=rate, source=said)
    if Path(peak).is_file():
        return Ceilings(_measured(Path(peak)), bandwidth=rate, source=f"measured in {Path(peak).name}")
    if peak.endswith(".json"):
        raise UsageError(
            f"--peak: no file {peak}",
            why="It does not exist.",
            hint=f"Measure it: rankscope bench seqpar --json > {peak}",
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
            f"--peak {text} is not a rate", why="It must be more than 0.", hint="Example: --peak 989TF"
        )
    return rate


def _measured(path: Path) -> dict[str, float]:
    """The rate of the fastest matrix product of a seqpar report, by its data type."""
    wrong = UsageError(
        f"{path} is not a report of the benchmark",
        why="--peak takes a rate (989TF) or a file that `rankscope bench seqpar --json` wrote.",
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
