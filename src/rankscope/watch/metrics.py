"""The state of a job as metrics: the same names in Prometheus's text and over OpenTelemetry's protocol (OTLP)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.errors import StoreError
from rankscope.files import write_text
from rankscope.watch.alarms import KINDS
from rankscope.watch.state import State

_RANK_METRICS = (
    ("last_step", "last_step", 1, "", "Number of the last step of the rank."),
    ("seconds_without_step", "without_step_s", 1, "s", "Time since the last step of the rank."),
    ("own_work_excess_seconds", "excess_ns", 1e9, "s", "Own work beyond that of the median rank, per step."),
    (
        "memory_bytes",
        "memory_bytes",
        1,
        "By",
        "Memory of the GPU; without one, resident memory of the process.",
    ),
)


class Metric(NamedTuple):
    """A gauge, and its values by their labels."""

    name: str
    unit: str
    """As UCUM writes it. Prometheus has it in the name, which a collector therefore leaves as it is."""
    text: str
    samples: list[tuple[dict[str, str], float]]


def metrics(state: State) -> Iterator[Metric]:
    """All metrics that have values at present."""
    run = {"run": Path(state["run"]).name}
    if step := state["step_ns"]:
        quantiles = (("p5", "0.05"), ("median", "0.5"), ("p95", "0.95"))
        times = [({**run, "quantile": name}, step[key] / 1e9) for key, name in quantiles]
        yield Metric("rankscope_step_seconds", "s", "Step time over the last steps.", times)
    running = int(state["state"] == "running")
    yield Metric("rankscope_running", "", "1 while the job runs.", [(run, running)])
    yield Metric("rankscope_ranks", "", "Ranks that write telemetry.", [(run, state["alive_ranks"])])
    kinds = [alarm["kind"] for alarm in state["alarms"]]
    counts = [({**run, "kind": kind}, float(kinds.count(kind))) for kind in KINDS]
    yield Metric("rankscope_alarms", "", "Alarms at present, by kind.", counts)
    for name, key, divisor, unit, text in _RANK_METRICS:
        of_ranks = [
            ({**run, "rank": str(rank["rank"]), "node": rank["node"]}, rank[key] / divisor)
            for rank in state["ranks"]
            if rank[key] is not None
        ]
        if of_ranks:
            yield Metric(f"rankscope_rank_{name}", unit, text, of_ranks)


def write_metrics(path: Path, state: State) -> None:
    """The metrics in Prometheus's text format, for node_exporter's textfile collector."""
    try:
        write_text(path, "\n".join(_prometheus_lines(state)) + "\n")
        path.chmod(0o644)  # node_exporter is another user
    except OSError as error:
        raise StoreError(
            f"cannot write {path}", why=f"{error.strerror or error}.", hint="Name another: --prometheus FILE"
        ) from error


def _prometheus_lines(state: State) -> Iterator[str]:
    for metric in metrics(state):
        yield f"# HELP {metric.name} {metric.text}"
        yield f"# TYPE {metric.name} gauge"
        for labels, value in metric.samples:
            inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
            yield f"{metric.name}{{{inside}}} {value:.10g}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class OtlpExport:
    """Sends the last state to an OpenTelemetry collector. Address, period and headers: OpenTelemetry's variables."""

    def __init__(self) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        except ImportError as error:
            raise StoreError(
                "--otlp needs OpenTelemetry's packages", why=f"{error}.", hint="pip install 'rankscope[otlp]'"
            ) from error
        self._current: dict[str, Metric] = {}
        self._gauges: set[str] = set()
        self._provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
        self._meter = self._provider.get_meter("rankscope")

    def update(self, state: State) -> None:
        self._current = {metric.name: metric for metric in metrics(state)}
        for metric in self._current.values():
            if metric.name not in self._gauges:
                self._gauges.add(metric.name)
                self._meter.create_observable_gauge(
                    metric.name, [self._observer(metric.name)], metric.unit, metric.text
                )

    def _observer(self, name: str) -> Any:
        from opentelemetry.metrics import Observation

        def observe(_options: object) -> Iterator[Any]:
            if metric := self._current.get(name):
                yield from (Observation(value, labels) for labels, value in metric.samples)

        return observe

    def close(self) -> None:
        """Send what was not sent yet."""
        self._provider.shutdown()
