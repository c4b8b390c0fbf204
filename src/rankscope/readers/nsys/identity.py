"""The ranks in a report: usually one; one per process where nsys profiled a launcher.

nsys records the environment of the command it ran. Only the launcher's variables in it are used, with the same rules
as at capture; nothing of it is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rankscope.capture.rank import SINGLE, Identity, detect
from rankscope.readers.base import rank_from_name
from rankscope.readers.nsys.export import PID, NsysExport
from rankscope.readers.sqlite_file import text_of

FROM_ENVIRONMENT = "recorded environment"
FROM_MPI = "MPI rank"
IN_ORDER = "recorded environment, processes in order of start"
FROM_COMMAND = "recorded command"
FROM_DEVICES = "one process per device"
_OF_ONE_PROCESS = ("torchrun", "RANK")
"""Launchers whose variables belong to one process; those of others may belong to one task per node."""
_MPI_RANK = re.compile(r"^MPI Rank (\d+)$")
_THREAD_NAME = 39
_TRAILING_NUMBER = re.compile(r"_(\d{1,6})$")
_LAUNCHERS = (
    (re.compile(r"(?:^|/)torchrun$|^torch\.distributed\.(?:run|launch)$"), ("--nproc-per-node",)),
    (re.compile(r"(?:^|/)(?:mpiexec|mpirun|orterun)(?:[._].*)?$"), ("-n", "-np", "--np", "-c", "--procs")),
    (re.compile(r"(?:^|/)srun$"), ("-n", "--ntasks")),
    (re.compile(r"(?:^|/)deepspeed$"), ("--num-gpus",)),
    (re.compile(r"(?:^|/)accelerate$|^accelerate\.commands\.launch$"), ("--num-processes",)),
)
"""Launchers, and their options that say how many ranks they start (on this node)."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one rank in a report."""

    rank: int | None
    source: str
    world_size: int | None
    pids: frozenset[int]
    part: str = ""
    """Identifies this group within the file; empty if the file has one rank."""
    others: int = 0
    """Number of processes in the file that belong to no rank, such as the launcher. They are left out."""
    merged: int = 0
    """Number of processes that use CUDA and of which nothing tells the ranks; they are read as one."""

    @property
    def whole(self) -> bool:
        return not self.part


def groups_of(export: NsysExport) -> list[ProcessGroup]:
    """The ranks in a report, in order. A file of one rank gives one group with every process."""
    pids = _processes(export)
    started = next(_identities(_of_the_command(export)), None)
    by_pid, source, world = _ranks_of_processes(export, pids, started)
    if len(set(by_pid.values())) > 1:
        others = len(set(pids) - set(by_pid))
        pids_of = {rank: frozenset(pid for pid in by_pid if by_pid[pid] == rank) for rank in by_pid.values()}
        return [
            ProcessGroup(rank, source, world, pids_of[rank], f"rank {rank}", others)
            for rank in sorted(pids_of)
        ]
    everything = frozenset(pids)
    workers = len(processes_with_cuda(export))
    # Where several processes use CUDA, nsys profiled a launcher, whose variables are not those of a rank.
    merged = workers if workers > 1 else 0
    identity = started
    if identity is None:  # that on which all processes agree
        recorded = [*_identities(_of_processes(export))]
        identity = recorded[0] if len({each.rank for each in recorded}) == 1 else None
    if identity is not None and (identity.source in _OF_ONE_PROCESS or not merged):
        merged_here = 0 if started is not None and started.source in _OF_ONE_PROCESS else merged
        return [
            ProcessGroup(identity.rank, FROM_ENVIRONMENT, identity.world_size, everything, merged=merged_here)
        ]
    if by_pid:
        return [ProcessGroup(next(iter(by_pid.values())), FROM_MPI, None, everything)]
    named = rank_from_report_name(export)
    return [ProcessGroup(named, "file name" if named is not None else "", None, everything, merged=merged)]


def rank_from_report_name(export: NsysExport) -> int | None:
    """The rank in the file's name, as for other traces, or a number at its end: report_3.sqlite."""
    named = rank_from_name(export.path)
    if named is None and (match := _TRAILING_NUMBER.search(export.path.name.partition(".")[0])):
        named = int(match[1])
    return named


def recorded_environments(export: NsysExport) -> list[dict[str, str]]:
    """Every environment in the report: that of the command, then those of processes in order of appearance."""
    return [environment for environment in _of_the_command(export) + _of_processes(export) if environment]


def _of_the_command(export: NsysExport) -> list[dict[str, str]]:
    """The environment of nsys itself, and thus of the command it ran."""
    environments = []
    if export.has("META_DATA_CAPTURE", "name", "value"):
        rows = export.rows(
            "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE 'PROCESS_%ENVIRONMENT_VARIABLE'"
        )
        environments.append(_variables((text_of(value) for (value,) in rows), quoted=True))
    if export.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        rows = export.rows("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'")
        environments += [_variables(text_of(value).split(";")) for (value,) in rows]
    return environments


def _of_processes(export: NsysExport) -> list[dict[str, str]]:
    """Environments among the strings: variables separated by zero bytes, without the process they belong to.

    They include processes that only ran on the same machine: of another rank or another job.
    """
    rows = export.rows("SELECT value FROM StringIds WHERE instr(CAST(value AS BLOB), x'00') > 0 ORDER BY id")
    return [_variables(text_of(value).split("\0")) for (value,) in rows]


def _variables(lines: Iterable[str], quoted: bool = False) -> dict[str, str]:
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name: value.strip('"') if quoted else value for name, _, value in pairs}


def _identities(environments: Iterable[Mapping[str, str]]) -> Iterator[Identity]:
    return (identity for identity in map(detect, environments) if identity.source != SINGLE)


def _processes(export: NsysExport) -> list[int]:
    """Processes with recorded events, in order of process id."""
    pids = set(processes_with_cuda(export))
    scanned = ["NVTX_EVENTS", "OSRT_API", "MPI_RANKS", "MPI_OTHER_EVENTS"]
    if not pids:
        scanned.append("CUPTI_ACTIVITY_KIND_RUNTIME")
    return sorted(pids.union(*(_processes_in(export, table) for table in scanned)))


def _processes_in(export: NsysExport, table: str) -> set[int]:
    if not export.has(table, "globalTid"):
        return set()
    rows = export.rows(f"SELECT DISTINCT {PID.format('globalTid')} FROM {table} WHERE globalTid IS NOT NULL")
    return {pid for (pid,) in rows}


def _ranks_of_processes(
    export: NsysExport, pids: list[int], started: Identity | None
) -> tuple[dict[int, int], str, int | None]:
    """Rank by process id, the source of that, and the world size; {} if unknown.

    A command that was started as one rank is that rank, with all its child processes.
    """
    ranks = _mpi_ranks(export)
    if ranks:
        return ranks, FROM_MPI, None
    if started is not None and started.source in _OF_ONE_PROCESS:
        return {}, "", None
    workers = processes_with_cuda(export) or sorted(_processes_in(export, "NVTX_EVENTS") - {0}) or pids
    launchers: dict[tuple[str, int | None], list[int]] = {}
    for identity in map(detect, _of_processes(export)):
        if identity.source in _OF_ONE_PROCESS or (started is None and identity.source != SINGLE):
            launchers.setdefault((identity.source, identity.world_size), []).append(identity.rank)
    for (_, world), recorded in launchers.items():
        distinct = list(dict.fromkeys(recorded))
        if len(distinct) > 1 and len(distinct) == len(workers):
            return dict(zip(workers, distinct, strict=True)), IN_ORDER, world
    return _from_command(export, started) or _from_devices(export) or ({}, "", None)


def _from_command(
    export: NsysExport, started: Identity | None
) -> tuple[dict[int, int], str, int | None] | None:
    """From a launcher in the command line of nsys, if as many processes use CUDA as it starts ranks."""
    workers, words = processes_with_cuda(export), _command(export)
    for position, word in enumerate(words):
        ranks_here = next((names for pattern, names in _LAUNCHERS if pattern.search(word)), None)
        if ranks_here is None:
            continue
        options = words[position + 1 :]
        count = _option(options, ranks_here)
        if count in ("gpu", "auto") and export.has("TARGET_INFO_GPU", "id"):
            count = str(export.rows("SELECT count(*) FROM TARGET_INFO_GPU")[0][0])
        if len(workers) < 2 or count != str(len(workers)):
            return None
        node, nodes = _option(options, ("--node-rank",)), _option(options, ("--nnodes",))
        if node is None and started is not None:  # one launcher on each node, started by srun or mpiexec
            node, nodes = str(started.rank), str(started.world_size or "")
        first = int(node) * len(workers) if node and node.isdigit() else 0
        world = int(nodes) * len(workers) if nodes and nodes.isdigit() else None
        ranks = {pid: first + local for local, pid in enumerate(_by_device(export, workers))}
        return ranks, FROM_COMMAND, world if nodes else len(workers)
    return None


def _from_devices(export: NsysExport) -> tuple[dict[int, int], str, int | None] | None:
    """Several processes, each on a device of its own: ranks in order of the devices.

    They are the ranks of one node; on which node it is, nothing tells. Not those of a launcher that started another
    number.
    """
    workers, devices = processes_with_cuda(export), _devices(export)
    if any(pattern.search(word) for word in _command(export) for pattern, _ in _LAUNCHERS):
        return None
    alone = len({device for used in devices.values() for device in used}) == len(workers) == len(devices)
    if len(workers) < 2 or not alone or any(len(used) != 1 for used in devices.values()):
        return None
    return {pid: rank for rank, pid in enumerate(_by_device(export, workers))}, FROM_DEVICES, None


def _by_device(export: NsysExport, workers: list[int]) -> list[int]:
    """In order of their devices, if each has one of its own (LOCAL_RANK by convention), else in order of start."""
    devices = _devices(export)
    used = [devices.get(pid, set()) for pid in workers]
    if all(len(devices_of_one) == 1 for devices_of_one in used) and len(set.union(*used)) == len(workers):
        return sorted(workers, key=lambda pid: min(devices[pid]))
    return workers


def _devices(export: NsysExport) -> dict[int, set[int]]:
    """The devices that each process computes on; a context alone, such as that of a peer, is no use of a device."""
    used: dict[int, set[int]] = {}
    for table, column, pid in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid", PID.format("globalPid")),
        ("TARGET_INFO_CUDA_CONTEXT_INFO", "processId", "processId"),
    ):
        if not used and export.has(table, "deviceId", column):
            for process, device in export.rows(f"SELECT DISTINCT {pid}, deviceId FROM {table}"):
                used.setdefault(process, set()).add(device)
    return used


def _command(export: NsysExport) -> list[str]:
    """The command that nsys started."""
    if not export.has("META_DATA_CAPTURE", "name", "value"):
        return []
    rows = {
        text_of(name): text_of(value)
        for name, value in export.rows(
            "SELECT name, value FROM META_DATA_CAPTURE WHERE name LIKE 'PROCESS_0:COMMAND' "
            "OR name LIKE 'PROCESS_0:ARGUMENT_%'"
        )
    }
    arguments = {int(name.rpartition("_")[2]): value for name, value in rows.items() if name[-1:].isdigit()}
    return [rows.get("PROCESS_0:COMMAND", ""), *(arguments[number] for number in sorted(arguments))]


def _option(words: list[str], names: tuple[str, ...]) -> str | None:
    """The value of the first of these options, written --name value, --name=value or --na_me value."""
    for word, behind in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if (name if name[:2] != "--" else name.replace("_", "-")) in names:
            return value if equals else behind
    return None


def _mpi_ranks(export: NsysExport) -> dict[int, int]:
    """Ranks recorded by MPI tracing: in a table, or in the name that nsys gives the thread."""
    ranks: dict[int, int] = {}
    if export.has("MPI_RANKS", "globalTid", "rank"):
        ranks.update(export.rows(f"SELECT {PID.format('globalTid')}, rank FROM MPI_RANKS"))
    if not ranks and export.has("NVTX_EVENTS", "eventType", "text", "globalTid"):
        rows = export.rows(
            f"SELECT {PID.format('globalTid')}, text FROM NVTX_EVENTS "
            f"WHERE eventType = {_THREAD_NAME} AND text LIKE 'MPI Rank %'"
        )
        matches = ((pid, _MPI_RANK.match(text_of(text))) for pid, text in rows)
        ranks.update({pid: int(match[1]) for pid, match in matches if match})
    return ranks


def processes_with_cuda(export: NsysExport) -> list[int]:
    for table in ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_STREAM"):
        if export.has(table, "processId"):
            return sorted(pid for (pid,) in export.rows(f"SELECT DISTINCT processId FROM {table}") if pid)
    return []
