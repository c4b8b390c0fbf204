"""Finds the ranks of a node's GPUs, and the time zone of their log, from the traces that lie beside it.

nvidia-smi and DCGM write one file for all GPUs of a node. It names no rank, and its times often have no zone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankscope.errors import RankError, RankscopeError, ReadError
from rankscope.model import TIMELINE_FORMATS
from rankscope.readers import NodeLog
from rankscope.readers.base import LOCAL, UNIX, LoggedDevice, NodePart
from rankscope.records import dataclass
from rankscope.store.index import SegmentEntry

_SECOND = 1_000_000_000
_QUARTER_NS = 900 * _SECOND
_ZONES = range(-12 * 4, 14 * 4 + 1)
"""UTC-12 to UTC+14 in quarters of an hour."""
_WRITTEN_NS = 10 * _SECOND
"""A log that ends within so much of its file's time of change was written by this clock."""
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.IGNORECASE)


@dataclass(frozen=True)
class RankGpus:
    """What the traces of one rank tell: where it ran, on which devices, and when."""

    rank: int
    host: str
    devices: tuple[int, ...]
    """Numbers of the devices as the process saw them."""
    uuids: tuple[str, ...]
    begin_ns: int
    end_ns: int


def rank_gpus(entries: Sequence[SegmentEntry]) -> list[RankGpus]:
    """The ranks whose traces have device activity and wall-clock times, in order."""
    by_rank: dict[int, list[SegmentEntry]] = {}
    for entry in entries:
        if entry.format in TIMELINE_FORMATS and entry.has_times and entry.has_wall_clock:
            by_rank.setdefault(entry.rank, []).append(entry)
    ranks = []
    for rank, traces in sorted(by_rank.items()):
        devices = sorted({device for entry in traces for device in entry.manifest.get("devices", ())})
        if not devices:
            continue
        hosts = [
            _short(str(host))
            for entry in traces
            if (host := entry.captured.get("host") or entry.header.get("host_name"))
        ]
        uuids = {
            _bare(str(gpu["uuid"]))
            for entry in traces
            for gpu in entry.devices
            if gpu.get("uuid") and gpu.get("id") in devices
        }
        begin, end = min(e.unix_origin_ns for e in traces), max(e.unix_end_ns for e in traces)
        ranks.append(
            RankGpus(rank, hosts[0] if hosts else "", tuple(devices), tuple(sorted(uuids)), begin, end)
        )
    return ranks


def _short(host: str) -> str:
    """The first part of the name of a host, in lower case."""
    return host.partition(".")[0].lower()


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def place_logs(
    logs: Mapping[Path, NodeLog], entries: Sequence[SegmentEntry], given: Mapping[Path, int]
) -> tuple[list[tuple[Path, int, str]], list[RankscopeError]]:
    """Each log with a rank and that rank's part of it, and an error for each log whose ranks or times cannot be told.

    `given` holds the ranks that the user gave.
    """
    ranks = rank_gpus(entries)
    parts: list[tuple[Path, int, str]] = []
    problems: list[RankscopeError] = []
    for path, log in logs.items():
        try:
            owners = _owners(path, log, ranks, given, len(logs))
            begin, end = min(gpus.begin_ns for gpus, _ in owners), max(gpus.end_ns for gpus, _ in owners)
            shift = shift_ns(path, log, begin, end)
            for gpus, devices in owners:
                keys = tuple(device.key for device in devices)
                parts.append((path, gpus.rank, str(NodePart(keys, shift, gpus.begin_ns, gpus.end_ns))))
        except RankscopeError as error:
            problems.append(error)
    return parts, problems


def _owners(
    path: Path, log: NodeLog, ranks: list[RankGpus], given: Mapping[Path, int], logs: int
) -> list[tuple[RankGpus, list[LoggedDevice]]]:
    """The ranks of this log's node, each with its GPUs. Raises RankError if they cannot be told."""
    if not ranks:
        raise RankError(
            f"cannot tell the ranks of the GPUs in {path}",
            why="No trace beside it has GPU work and wall-clock times (a store of an earlier version may not tell).",
            hint="Put it into the folder of its run. If it is there, delete the folder .rankscope in it.",
        )
    if path in given:
        told = [gpus for gpus in ranks if gpus.rank == given[path]]
        if not told or len(log.devices) != 1:
            raise RankError(
                f"{path} is not of rank {given[path]}",
                why=f"It is a log of {len(log.devices)} GPUs."
                if told
                else "There is no trace with GPU work of this rank.",
                hint="Give the rank of a log of one GPU: nvidia-smi -i N",
            )
        return [(told[0], list(log.devices))]
    by_uuid = {_bare(device.uuid): device for device in log.devices if device.uuid}
    owners = [(gpus, [by_uuid[uuid] for uuid in gpus.uuids if uuid in by_uuid]) for gpus in ranks]
    if exact := [(gpus, devices) for gpus, devices in owners if devices]:
        return exact
    here = _on_node(path, log, ranks, logs)
    if len(here) == 1 and len(log.devices) == 1:
        return [(here[0], list(log.devices))]
    by_number = {device.number: device for device in log.devices if device.number is not None}
    everyone = [device for gpus in here for device in gpus.devices]
    if len(set(everyone)) == len(everyone):
        owners = [(gpus, [by_number[n] for n in gpus.devices if n in by_number]) for gpus in here]
    elif len(here) == len(by_number) and all(len(gpus.devices) == 1 for gpus in here):
        # Each process sees one GPU, as its number 0: they are given out in the order of the ranks.
        owners = [(gpus, [by_number[n]]) for gpus, n in zip(here, sorted(by_number), strict=True)]
    else:
        raise RankError(
            f"cannot tell the ranks of the {len(log.devices)} GPUs in {path}",
            why=f"{len(here)} ranks use the devices {_listed(everyone)}: several have the same number.",
            hint="Log one GPU per rank (nvidia-smi -i N -f FILE) and say whose it is: rankscope ingest --rank N=FILE",
        )
    if owners := [(gpus, devices) for gpus, devices in owners if devices]:
        return owners
    raise RankError(
        f"no rank used the GPUs in {path}",
        why=f"It has GPU {_listed(list(by_number))}; the traces have device {_listed(everyone)}.",
        hint="Put it beside the traces of its own node, or record it with the columns index and uuid.",
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers))[:8])) or "without a number"


def _on_node(path: Path, log: NodeLog, ranks: list[RankGpus], logs: int) -> list[RankGpus]:
    """The ranks of the log's node: all, if the run has one node; else by the host in the log or in its path."""
    hosts = sorted({gpus.host for gpus in ranks})
    if len(hosts) == 1 and (hosts[0] or logs == 1):
        return ranks
    named = [host for host in hosts if host and host == _short(log.host)]
    if not named:
        words = {word.lower() for part in (path.stem, path.parent.name) for word in _words(part)}
        named = [host for host in hosts if host and host in words]
    if len(named) == 1:
        return [gpus for gpus in ranks if gpus.host == named[0]]
    if "" in hosts:
        raise RankError(
            f"cannot tell the node of {path}",
            why=f"The traces do not all name their hosts, and there {'is' if logs == 1 else 'are'} {logs} "
            f"file{'s' * (logs > 1)} of GPU counters.",
            hint="Open the traces of one node with its file, or log one GPU per rank: rankscope ingest --rank N=FILE",
        )
    raise RankError(
        f"cannot tell the node of {path}",
        why=f"The run has the hosts {', '.join(hosts[:4])}{' …' * (len(hosts) > 4)}, and its name has none of them.",
        hint=f"Name it after its host: {hosts[0]}{path.suffix}",
    )


def _words(text: str) -> list[str]:
    """The parts of a name that may be a host's: a.node-3.csv has node-3, and node and 3 on their own."""
    return [
        word for part in re.split(r"[._\s]+", text) for word in (part, *part.split("-"), *_NAME.findall(part))
    ]


def shift_ns(path: Path, log: NodeLog, begin_ns: int, end_ns: int) -> int:
    """What is added to the times of a log to get times since 1970, so that it overlaps the traces.

    Of several zones that would do: that of the file's time of change, that of this machine, UTC, the only one of whole
    hours.
    """
    shifts = [-zone * _QUARTER_NS for zone in _ZONES]
    if log.clock == UNIX:
        shifts = [0]
    fit = [s for s in shifts if log.first_ns + s <= end_ns and begin_ns <= log.last_ns + s]
    if not fit:
        raise ReadError(
            f"{path} has no samples of the time of the traces",
            why=f"It is from {_utc(log.first_ns)} to {_utc(log.last_ns)}{' in any time zone' * (log.clock == LOCAL)}; "
            f"the traces are from {_utc(begin_ns)} to {_utc(end_ns)} UTC.",
            hint="Record it while the job runs, from before the first recorded step to after the last.",
        )
    if len(fit) == 1:
        return fit[0]
    changed = path.stat().st_mtime_ns
    written = [s for s in fit if abs(log.last_ns + s - changed) < _WRITTEN_NS]
    here = -time.localtime(begin_ns // _SECOND).tm_gmtoff * _SECOND
    usual = [s for at in (here, 0) for s in fit if s == at]
    whole = [s for s in fit if s % (4 * _QUARTER_NS) == 0]
    chosen = [*written, *usual, *(whole if len(whole) == 1 else [])]
    if chosen:
        return chosen[0]
    raise ReadError(
        f"cannot tell the time zone of {path}",
        why=f"Its times have none, and {len(fit)} zones would make it overlap the traces.",
        hint="Set TZ to the zone of the node that wrote it: TZ=Europe/Berlin rankscope …",
    )


def _utc(ns: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ns // _SECOND))
    except (ValueError, OverflowError, OSError):
        return "an impossible time"
