"""Facts about a run besides its events: job, software, hardware, and what was recorded."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rankscope.analysis.core.scope import Scope, step_numbers
from rankscope.capture.run_folder import rank_manifests, read_json
from rankscope.ranges import as_ranges, role_words
from rankscope.store.index import SegmentEntry
from rankscope.text.redaction import redacted_command
from rankscope.timeline.run import Run
from rankscope.units import format_bytes, format_count

_RECORDED = {
    "record_shapes": "shapes",
    "profile_memory": "memory",
    "with_stack": "Python stacks",
    "with_flops": "FLOPs",
    "with_modules": "modules",
}
_MOST_DIFFERENT = 4


def facts(run: Run, scope: Scope) -> dict[str, list[tuple[str, str]]]:
    """By topic, (label, value); unknown values are left out. So are folders, since reports are sent to others."""
    entries = [entry for entry in run.segments if scope.has_rank(entry.rank)]
    headers = [header for entry in entries if isinstance(header := entry.manifest.get("header"), dict)]
    job, ranks = _beside(entries, run.store)
    topics = {
        "Run": _run(run, entries, job, ranks),
        "Software": _software(headers, job, ranks),
        "Hardware": _hardware(headers, ranks),
        "Recorded": _recorded(run, entries, headers),
    }
    return {topic: rows for topic, rows in topics.items() if rows}


def _run(
    run: Run, entries: list[SegmentEntry], job: dict[str, Any], ranks: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    numbers = sorted({entry.rank for entry in entries})
    rows = [("Ranks", f"{len(numbers):,} ({as_ranges(numbers)})")]
    if run.roles:
        rows.append(("Roles", role_words(run.roles)))
    worlds = {int(size) for rank in ranks if isinstance(size := rank.get("world_size"), int)}
    if worlds and max(worlds) > len(numbers):
        rows.append(("World size", f"{max(worlds):,}; not all ranks were recorded"))
    if run.start_unix_ns:
        at = datetime.fromtimestamp(run.start_unix_ns // 10**9, tz=timezone.utc)
        rows.append(("Began", f"{at:%Y-%m-%d %H:%M:%S} UTC"))
    command = job.get("command")
    if isinstance(command, list):
        # Redacted when it was recorded; again for manifests of versions that did not.
        rows.append(("Command", " ".join(redacted_command(list(map(str, command))))))
    if job.get("job"):
        rows.append(("Job", str(job["job"])))
    return rows


def _software(
    headers: list[dict[str, Any]], job: dict[str, Any], ranks: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    rows = [
        ("torch", _spread([rank.get("torch") for rank in ranks])),
        ("Python", _spread([rank.get("python") for rank in ranks])),
    ]
    for label, key in (("CUDA driver", "cuda_driver_version"), ("CUDA runtime", "cuda_runtime_version")):
        rows.append((label, _spread([_cuda(header.get(key)) for header in headers])))
    backends = [
        info.get("backend") for header in headers if isinstance(info := header.get("distributedInfo"), dict)
    ]
    rows.append(("Backend", _spread(backends)))
    if job.get("tool"):
        rows.append(("Captured by", f"rankscope {job.get('rankscope', '')} with {job['tool']}"))
    return [row for row in rows if row[1]]


def _hardware(headers: list[dict[str, Any]], ranks: list[dict[str, Any]]) -> list[tuple[str, str]]:
    devices = []
    for header in headers:
        listed = header.get("deviceProperties")
        for device in listed if isinstance(listed, list) else []:
            if isinstance(device, dict) and device.get("name"):
                memory = device.get("totalGlobalMem")
                size = f", {format_bytes(memory, 0)}" if isinstance(memory, int) else ""
                devices.append(f"{device['name']}{size}")
    hosts = sorted({str(rank["host"]) for rank in ranks if rank.get("host")})
    rows = [("GPU", _spread(devices, count=False))]
    if hosts:
        named = ", ".join(hosts[:_MOST_DIFFERENT]) + (" …" if len(hosts) > _MOST_DIFFERENT else "")
        rows.append(("Hosts", f"{len(hosts):,} ({named})"))
    return [row for row in rows if row[1]]


def _recorded(run: Run, entries: list[SegmentEntry], headers: list[dict[str, Any]]) -> list[tuple[str, str]]:
    events = sum(int(entry.manifest.get("events", 0)) for entry in entries)
    size = sum(int(entry.manifest["source"]["bytes"]) for entry in entries)
    formats = _spread([entry.manifest.get("reader") for entry in entries], count=False)
    rows = [
        ("Files", f"{len(entries):,} ({formats}), {format_bytes(size)}"),
        ("Events", format_count(events)),
    ]
    lost = sum(int(entry.manifest["reading"]["events_lost"]) for entry in entries)
    if lost:
        rows.append(("Could not be read", format_count(lost)))
    if headers:
        options = [label for key, label in _RECORDED.items() if any(header.get(key) for header in headers)]
        rows.append(("With", ", ".join(options) or "no shapes, memory, stacks, FLOPs or modules"))
    steps = step_numbers(run, Scope())
    if steps:
        rows.append(("Steps", f"{len(steps):,} ({as_ranges(steps)})"))
    return rows


def _cuda(version: object) -> str | None:
    """13000 is 13.0."""
    return f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) and version > 0 else None


def _spread(values: list[Any], count: bool = True) -> str:
    """The value where all are equal; else each value with its count."""
    counts = Counter(str(value) for value in values if value)
    if len(counts) <= 1 or not count:
        return ", ".join(list(counts)[:_MOST_DIFFERENT])
    return ", ".join(f"{value} ({number} files)" for value, number in counts.most_common(_MOST_DIFFERENT))


def _beside(entries: list[SegmentEntry], store: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The manifests that `rankscope profile` wrote beside the traces: of the job, and of the ranks."""
    folders = {entry.source.parent for entry in entries}
    if len(folders) != 1:
        return {}, []
    folder = folders.pop()
    if not (folder / "rankscope.json").is_file():
        # The raw files are on another machine, or the capture wrote them to another folder.
        folder = store.parent
    return read_json(folder / "rankscope.json") or {}, list(rank_manifests(folder))
