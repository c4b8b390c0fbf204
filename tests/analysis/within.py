"""Helpers for the tests of within_rank: raw events, and idle causes by brute force."""

from __future__ import annotations

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")
CAUSES = ("host_bound", "launch_latency", "sync", "dataloader", "other")


def report(run: Run, name: str, by: str | None = None, **scope: Any) -> Result:
    return REPORTS[name].analyse(run, Scope(**scope), by)


def raw(path: Path) -> list[dict[str, Any]]:
    """The slices of a trace as plain dictionaries; times in whole ns."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = []
    for event in json.loads(text)["traceEvents"]:
        if event.get("ph") == "X":
            start = round(float(event["ts"]) * 1000)
            event["start"], event["end"] = start, start + round(float(event["dur"]) * 1000)
            events.append(event)
    return events


def inside(time: int, spans: list[tuple[int, int]]) -> bool:
    return any(start <= time < end for start, end in spans)


def idle_causes(events: list[dict[str, Any]]) -> dict[int, dict[str, int]]:
    """docs/definitions.md as plain Python, for a trace without collectives on the host: device -> cause -> ns."""
    launches = {e["args"]["correlation"]: e["start"] for e in events if e.get("cat") in RUNTIME}
    sync = [(e["start"], e["end"]) for e in events if e.get("cat") in RUNTIME and "Synchronize" in e["name"]]
    data = [
        (e["start"], e["end"])
        for e in events
        if e.get("cat") == "user_annotation" and re.search("DataLoader", e["name"])
    ]
    totals: dict[int, dict[str, int]] = {}
    devices: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") in GPU:
            devices.setdefault(event["args"]["device"], []).append(event)
    for device, work in devices.items():
        total = totals.setdefault(device, dict.fromkeys(CAUSES, 0))
        work.sort(key=lambda e: e["start"])
        reach = work[0]["end"]
        for event in work[1:]:
            if event["start"] > reach:
                launch = launches.get(event["args"]["correlation"])
                near = [s for s in sync + data if s[0] < event["start"] and s[1] > reach]
                edges = {reach, event["start"], *(t for s in near for t in s)} | (
                    {launch} if launch else set()
                )
                edges_in = sorted(t for t in edges if reach <= t <= event["start"])
                for low, high in pairwise(edges_in):
                    total[_cause(low, reach, launch, data, sync)] += high - low
            reach = max(reach, event["end"])
    return totals


def _cause(
    time: int,
    previous_end: int,
    launch: int | None,
    data: list[tuple[int, int]],
    sync: list[tuple[int, int]],
) -> str:
    if inside(time, data):
        return "dataloader"
    if launch is None or launch <= previous_end:
        return "other"
    if inside(time, sync):
        return "sync"
    return "host_bound" if time < launch else "launch_latency"
