"""What a probe has measured: of every rank's device, and of every pair of ranks. Written and read as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.errors import ReadError
from rankscope.ranges import as_ranges

_FORMAT = 1


class Test(NamedTuple):
    title: str
    unit: str
    action: str
    limit: float
    """Equal devices differ by less than this share."""


TESTS = {
    "matmul": Test("matmul", "TFLOP/s", "matmuls", 0.1),
    "memory": Test("memory", "GB/s", "memory copies", 0.1),
    "to_gpu": Test("to GPU", "GB/s", "copies from the host to the GPU", 0.2),
    "from_gpu": Test("from GPU", "GB/s", "copies from the GPU to the host", 0.2),
    "in_node": Test("in node", "GB/s", "all_reduces with its best partner in the node", 0.3),
    "between_nodes": Test("between", "GB/s", "all_reduces with its best partner in another node", 0.3),
    "disk_write": Test("disk write", "GB/s", "disk writes", 0.5),
    "disk_read": Test("disk read", "GB/s", "disk reads", 0.5),
}


@dataclass
class DeviceResult:
    """One rank's device."""

    rank: int
    host: str
    gpu: int | None
    """Its number on the host; None: the rank computes on its CPU."""
    model: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Of each test, block by block."""
    state: dict[str, Any] = field(default_factory=dict)
    busy: bool = False
    """Somebody else uses it: it was not tested."""
    sharing: int = 1
    """How many ranks use it."""
    digest: int | None = None
    """Of the product that all GPUs compute; None where it cannot be compared."""
    repeatable: bool = True
    """The product has the same bits each time."""
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return device_names([self])

    def rate(self, test: str) -> float:
        return statistics.median(self.rates[test])


def device_names(devices: Sequence[DeviceResult]) -> str:
    """Of one host: 'GPU 3 of node7', 'GPUs 0-3 of node7', 'ranks 0-3 of node7'."""
    numbers = sorted({device.rank if device.gpu is None else device.gpu for device in devices})
    kind = "rank" if devices[0].gpu is None else "GPU"
    return f"{kind}{'s' * (len(numbers) > 1)} {as_ranges(numbers)} of {devices[0].host}"


@dataclass
class PairResult:
    """all_reduce of two ranks."""

    ranks: list[int]
    rates: list[float]


@dataclass
class Results:
    devices: list[DeviceResult]
    pairs: list[PairResult]
    backend: str
    torch: str

    def __post_init__(self) -> None:
        """A rank's all_reduce is that with its best partner: a slow partner is not its fault."""
        rates: dict[tuple[int, str], list[list[float]]] = {}
        for pair in self.pairs:
            for rank in pair.ranks:
                rates.setdefault((rank, self.pair_test(pair)), []).append(pair.rates)
        for device in self.devices:
            for test in ("in_node", "between_nodes"):
                if of_partners := rates.get((device.rank, test)):
                    device.rates[test] = max(of_partners, key=statistics.median)

    @cached_property
    def by_rank(self) -> dict[int, DeviceResult]:
        return {device.rank: device for device in self.devices}

    def pair_test(self, pair: PairResult) -> str:
        first, second = (self.by_rank[rank].host for rank in pair.ranks)
        return "in_node" if first == second else "between_nodes"

    def to_json(self) -> dict[str, Any]:
        return {"probe": _FORMAT, **asdict(self)}


def read_results(paths: Iterable[str]) -> Results:
    """Results of several nodes as one. The ranks are numbered on from file to file."""
    devices: list[DeviceResult] = []
    pairs: list[PairResult] = []
    software: dict[str, list[str]] = {"backend": [], "torch": []}
    for path in paths:
        try:
            report = json.loads(Path(path).read_text(encoding="utf-8"))
            if report["probe"] != _FORMAT:
                raise ValueError(f"format {report['probe']} is not {_FORMAT}")
            first = len(devices)
            devices += [DeviceResult(**{**each, "rank": first + each["rank"]}) for each in report["devices"]]
            pairs += [
                PairResult([first + rank for rank in each["ranks"]], each["rates"])
                for each in report["pairs"]
            ]
            for key, values in software.items():
                values += [str(report[key])] if report[key] not in values else []
        except (ValueError, KeyError, TypeError) as error:
            raise ReadError(
                f"{path} is not a result of rankscope probe",
                why=f"{type(error).__name__}: {error}",
                hint="Make one: rankscope probe --json > FILE",
            ) from error
    if len(software["torch"]) > 1:  # their matmuls may sum in another order
        devices = [replace(device, digest=None) for device in devices]
    return Results(devices, pairs, ", ".join(software["backend"]), ", ".join(software["torch"]))
