"""Memory of this rank: current and peak use, and torch's allocation history on demand and when memory runs out."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

from rankscope.errors import RankscopeError
from rankscope.host import resident_bytes
from rankscope.inapp.job_log import JobLog, current_identity
from rankscope.units import format_bytes

# torch's own default keeps every event, which on a long run is gigabytes of host memory.
MAX_ENTRIES = 100_000


class Memory(NamedTuple):
    """Bytes on one device; for the host, the process's resident memory and its peak."""

    device: str
    allocated: int | None
    reserved: int | None
    peak_allocated: int
    peak_reserved: int | None
    total: int | None


def memory_now() -> list[Memory]:
    """The process on the host, then each GPU it has used. Does not synchronize."""
    now = resident_bytes() or 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # updated now and then: it may be behind
    host = Memory("host", now, None, max(now, peak), None, None)
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return [host]
    used = [index for index in range(torch.cuda.device_count()) if torch.cuda.max_memory_reserved(index)]
    return [host] + [
        Memory(
            f"cuda:{index}",
            torch.cuda.memory_allocated(index),
            torch.cuda.memory_reserved(index),
            torch.cuda.max_memory_allocated(index),
            torch.cuda.max_memory_reserved(index),
            torch.cuda.get_device_properties(index).total_memory,
        )
        for index in used
    ]


def memory_line() -> str:
    """One line for a log."""
    parts = []
    for memory in memory_now():
        text = f"{memory.device} {format_bytes(memory.allocated or 0)}"
        if memory.reserved is not None:
            text += f" allocated, {format_bytes(memory.reserved)} reserved"
        parts.append(f"{text} (peak {format_bytes(memory.peak_allocated)})")
    return ", ".join(parts)


def memory_overview() -> str:
    """memory_now as a table, for the end of a summary."""
    rows: list[tuple[str, ...]] = [
        ("Device", "Allocated", "Reserved", "Peak allocated", "Peak reserved", "Total")
    ]
    for device, *sizes in memory_now():
        rows.append((str(device), *("-" if size is None else format_bytes(int(size)) for size in sizes)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


class memory_history:  # noqa: N801  (used like a function: with rankscope.memory_history(...))
    """Record allocations on the GPU with their stacks, and write snapshots: on demand, and when memory runs out.

        with rankscope.memory_history("prof") as history:
            train()
            history.snapshot()

    Snapshots open in https://pytorch.org/memory_viz. Without a GPU it prints one line and does nothing.
    """

    def __init__(
        self, folder: str | Path = "prof", *, on_out_of_memory: bool = True, max_entries: int = MAX_ENTRIES
    ) -> None:
        self._identity = current_identity()
        self._folder = Path(folder).absolute()
        self._on_out_of_memory = on_out_of_memory
        self._max_entries = max_entries
        self._log = JobLog(self._identity.rank)
        self._snapshots = 0
        self.recording = False

    def __enter__(self) -> memory_history:
        import torch

        if not torch.cuda.is_available():
            self._log.warning(
                "no memory history: torch keeps one for CUDA devices only, and there is none here"
            )
            return self
        torch.cuda.memory._record_memory_history(max_entries=self._max_entries)
        self.recording = True
        if self._on_out_of_memory:
            torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        return self

    def __exit__(self, *_: object) -> None:
        if self.recording:
            import torch

            self.recording = False
            torch.cuda.memory._record_memory_history(enabled=None)

    def snapshot(self, path: str | Path | None = None) -> Path:
        """Write the history up to now; returns the file."""
        if not self.recording:
            raise RankscopeError(
                "there is no memory history to write",
                why="It is recorded between enter and exit, on a machine with a CUDA device.",
                hint="Call snapshot() inside `with rankscope.memory_history() as history:`.",
            )
        target = Path(path) if path is not None else self._folder / self._name(f"-{self._snapshots}")
        self._snapshots += 1
        return self._dump(target)

    def _dump(self, target: Path) -> Path:
        import torch

        target.parent.mkdir(parents=True, exist_ok=True)
        torch.cuda.memory._dump_snapshot(str(target))
        self._log.info(f"memory snapshot: {target}")
        return target

    def _out_of_memory(self, device: int, wanted: int, _total: int, _free: int) -> None:
        """Called by torch before it raises OutOfMemoryError; an exception here would hide that error."""
        if not self.recording:
            return
        try:
            self._log.warning(
                f"out of memory on cuda:{device}, {format_bytes(wanted)} wanted: {memory_line()}"
            )
            self._dump(self._folder / self._name("-oom"))
        except Exception as error:  # noqa: BLE001  (the job is about to see its OutOfMemoryError)
            self._log.warning(f"the memory snapshot could not be written: {error}")

    def _name(self, suffix: str) -> str:
        identity = self._identity
        return f"memory-{identity.rank}-of-{identity.world_size or 1}{suffix}.pickle"
