"""Handlers of recorded windows: a handler is any callable that takes a Recorded.

    def my_handler(recorded: rankscope.Recorded) -> None:
        recorded.export(recorded.folder / "mine.json.gz")          # written by a forked child, training goes on
        print(recorded.profile.key_averages().table(row_limit=5))  # torch's profiler object

    rankscope.profile(handlers=[my_handler, rankscope.Summary()])

If a handler has a ``close`` method, it is called after the last window.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rankscope.errors import UsageError

Handler = Callable[["Recorded"], object]

CHROME_TEMPLATE = "{name}-{rank}-of-{world}.json"


class ExportFunction(Protocol):
    """Writes a window's trace to a path, as gzip if it ends in .gz; a forked child does it."""

    def __call__(self, path: Path, *, wait: bool = False) -> None:
        """With ``wait`` the file is complete on return; training is paused until then."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One recorded window of one rank."""

    profile: Any
    """torch's profiler object: key_averages(), events(), export_stacks() and so on."""
    folder: Path
    """The profile folder (absolute)."""
    export: ExportFunction
    """Write the trace to a path, as gzip if it ends in .gz. A forked child does it."""
    rank: int
    world_size: int | None
    host: str
    pid: int
    index: int
    """0 for the first cycle of the schedule."""
    first_step: int
    last_step: int
    leads: bool = True
    """Whether this rank prints for all."""
    partial: bool = False
    """Whether the loop ended inside the window."""


@dataclass(frozen=True)
class ChromeTrace:
    """The trace as JSON, for chrome://tracing, Perfetto and `rankscope stats`."""

    name: str = "trace"
    template: str = CHROME_TEMPLATE
    """{name}, {rank}, {world}, {host}, {pid}, {cycle}, {first_step}, {last_step}; .gz compresses."""

    def __post_init__(self) -> None:
        self._formatted(0, 1, "host", 1, 0, 0, 0)

    def file_name(self, recorded: Recorded) -> str:
        text = self._formatted(
            *(recorded.rank, recorded.world_size or 1, recorded.host, recorded.pid),
            *(recorded.index, recorded.first_step, recorded.last_step),
        )
        if recorded.index and "{cycle" not in self.template and "_step" not in self.template:
            stem, dot, ending = text.partition(".json")
            return f"{stem}.cycle-{recorded.index}{dot}{ending}"
        return text

    def _formatted(self, *values: object) -> str:
        names = ("name", "rank", "world", "host", "pid", "cycle", "first_step", "last_step")
        try:
            return self.template.format(**dict(zip(names, (self.name, *values), strict=True)))
        except (KeyError, IndexError, ValueError) as error:
            raise UsageError(
                f"'{self.template}' is not a file name template",
                why=f"{error} is not one of its fields: {', '.join(names)}.",
                hint=f"The default is {CHROME_TEMPLATE}",
            ) from None

    def __call__(self, recorded: Recorded) -> None:
        recorded.export(recorded.folder / self.file_name(recorded))


@dataclass(frozen=True)
class TensorBoard:
    """The trace under the name that TensorBoard's profiler plug-in expects."""

    folder: str | Path | None = None
    """Default: the profile folder."""

    def __call__(self, recorded: Recorded) -> None:
        folder = Path(self.folder).absolute() if self.folder is not None else recorded.folder
        folder.mkdir(parents=True, exist_ok=True)
        # Host and pid alone do not identify the rank.
        worker = f"rank-{recorded.rank:05d}_{recorded.host}_{recorded.pid}"
        recorded.export(folder / f"{worker}.{time.time_ns()}.pt.trace.json.gz")


class TraceReady:
    """Calls a function written for torch.profiler.profile(on_trace_ready=...)."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function
        self.__name__ = getattr(function, "__qualname__", type(function).__name__)

    def __call__(self, recorded: Recorded) -> None:
        self._function(TorchProfile(recorded))


class TorchProfile:
    """torch's profiler object, except that its trace is written by a forked child and listed in the manifest."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self.step_num = recorded.last_step + 1
        """How many steps have ended, as in torch.profiler.profile."""

    def export_chrome_trace(self, path: str, **_which_writer: Any) -> None:
        """The file is complete on return, as in torch: the function may move or upload it."""
        self._recorded.export(Path(path).absolute(), wait=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorded.profile, name)
