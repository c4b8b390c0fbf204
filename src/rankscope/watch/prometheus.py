"""The state of a job as metrics in Prometheus's text format, for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankscope.watch.alarms import KINDS
from rankscope.watch.state import State

_OF_RANKS = (
    ("last_step", "last_step", 1, "Number of the last step of the rank."),
    ("seconds_without_step", "without_step_s", 1, "Time since the last step of the rank."),
    ("own_work_excess_seconds", "excess_ns", 1e9, "Own work beyond that of the median rank, per step."),
    ("memory_bytes", "memory_bytes", 1, "Memory of the GPU; without one, resident memory of the process."),
)


def metrics(state: State) -> str:
    """All metrics, each with its help."""
    return "\n".join(_lines(state)) + "\n"


def _lines(state: State) -> Iterator[str]:
    step = state["step_ns"]
    if step:
        yield from _metric(
            "step_seconds",
            "Step time over the last steps.",
            [
                ({"quantile": name}, step[key] / 1e9)
                for key, name in (("p5", "0.05"), ("median", "0.5"), ("p95", "0.95"))
            ],
        )
    yield from _metric("running", "1 while the job runs.", [({}, int(state["state"] == "running"))])
    yield from _metric("ranks", "Ranks that write telemetry.", [({}, state["alive_ranks"])])
    open_alarms = [alarm["kind"] for alarm in state["alarms"]]
    yield from _metric(
        "alarms", "Alarms at present, by kind.", [({"kind": kind}, open_alarms.count(kind)) for kind in KINDS]
    )
    for name, key, divisor, text in _OF_RANKS:
        known = [rank for rank in state["ranks"] if rank[key] is not None]
        yield from _metric(
            f"rank_{name}",
            text,
            [({"rank": str(rank["rank"]), "node": rank["node"]}, rank[key] / divisor) for rank in known],
        )


def _metric(name: str, text: str, samples: list[tuple[dict[str, str], Any]]) -> Iterator[str]:
    if not samples:
        return
    yield f"# HELP rankscope_{name} {text}"
    yield f"# TYPE rankscope_{name} gauge"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        yield f"rankscope_{name}{'{' + inside + '}' if inside else ''} {value:.10g}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
