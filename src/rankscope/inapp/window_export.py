"""The export of windows: to a trace file in the run folder, or to handlers. A forked child writes each file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.capture.rank_files import RankFiles
from rankscope.inapp.forked_export import Export, ExportOrder, Outcome
from rankscope.inapp.job_log import JobLog
from rankscope.inapp.torch_recorder import Recording
from rankscope.inapp.window_handlers import Handler, Recorded
from rankscope.units import format_bytes, format_ns

Window = dict[str, Any]

# How long training waits for a trace that on_trace_ready writes.
MOST_WAIT_S = 600.0


class WindowExporter:
    """Exports each window once; the manifest gets an entry per file."""

    def __init__(
        self, files: RankFiles, log: JobLog, max_size: int | None, handlers: Sequence[Handler]
    ) -> None:
        self._files = files
        self._log = log
        self._max_size = max_size
        self._handlers = handlers
        self._exports: list[tuple[Window, Export]] = []

    @property
    def busy(self) -> bool:
        """Whether a file was still being written at the last ``collect``."""
        return bool(self._exports)

    def send(self, window: Window, recording: Recording, why: str | None) -> None:
        """``why`` is the reason why the window is partial, or None."""
        if self._handlers:
            self._call_handlers(window, recording, why)
        else:
            self._export(window, recording, why, self._files.target(window["index"]))

    def record_stall(self, window: Window, nanoseconds: int) -> None:
        """Note how long the window paused training, in each of its manifest entries."""
        window["stall_ns"] = nanoseconds
        for other in self._files.manifest["windows"]:
            if other["index"] == window["index"]:
                other["stall_ns"] = nanoseconds

    def collect(self) -> None:
        """Note the outcomes of exports that have ended, and say which traces are on disk."""
        for window, export in [pair for pair in self._exports if pair[1].poll()]:
            window.update(export.outcome or {})
            self._exports.remove((window, export))
            if window["state"] == "whole":
                self._log.progress(
                    f"{_steps(window)} is on disk: {self._files.folder / window['file']} "
                    f"({format_bytes(window['bytes'], 1)}); training was paused for {format_ns(window['stall_ns'], 2)}"
                )

    def wait(self, seconds: float) -> bool:
        """Wait for all exports, but not for one that makes no progress: then False, its folder does not answer."""

        def waiting(done: int) -> None:
            self._log.warning(
                f"the trace is still being written ({format_bytes(done)} so far): the job waits"
            )

        answers = True
        for window, export in self._exports:
            export.wait(seconds if answers else 0, waiting)
            window.update(export.outcome or {})
            if export.stuck:
                self._log.warning(f"{_steps(window)} is lost: {window['why']}")
                answers = False
        self._exports.clear()
        return answers

    def _call_handlers(self, window: Window, recording: Recording, why: str | None) -> None:
        """Call every handler, also after one has failed."""
        facts = {key: self._files.manifest[key] for key in ("rank", "world_size", "host", "pid")}
        steps = {key: window[key] for key in ("index", "first_step", "last_step")}
        written: list[Path] = []

        def export(path: Path, *, wait: bool = False) -> None:
            running = self._export(dict(window) if written else window, recording, why, path)
            written.append(path)
            if wait:
                running.wait(MOST_WAIT_S)
                if running.outcome is None or running.outcome["state"] == "lost":
                    raise OSError(f"{path} was not written")

        recorded = Recorded(
            profile=recording.events,
            folder=self._files.folder,
            export=export,
            partial=why is not None,
            **facts,
            **steps,
        )
        for handler in self._handlers:
            try:
                handler(recorded)
            except Exception as error:  # noqa: BLE001  (a user's handler must not stop the job)
                name = getattr(handler, "__name__", type(handler).__name__)
                self._log.warning(
                    f"the handler {name} failed, the job goes on: {type(error).__name__}: {error}"
                )
        if not written:
            window.update(state="partial" if why else "whole", why=why, bytes=0)
            self._files.manifest["windows"].append(window)

    def _export(self, window: Window, recording: Recording, why: str | None, target: Path) -> Export:
        window["file"] = target.name
        if target.parent != self._files.folder:
            window["file"] = str(target)
            window["relative"] = os.path.relpath(target, self._files.folder)  # if both are moved together
        window["state"] = "exporting"
        self._files.manifest["windows"].append(window)

        def when_done(outcome: Outcome) -> None:
            # Runs in the exporting child: if the rank is killed meanwhile, this manifest is the one that stays.
            if why is not None and outcome["state"] == "whole":
                outcome.update(state="partial", why=why)
            window.update(outcome)
            if outcome["state"] != "whole":
                self._log.warning(f"{_steps(window)} is {outcome['state']}: {outcome['why']}")
            self._files.save()

        turn = self._files.manifest["local_rank"] or 0
        order = ExportOrder(recording.save, target, self._max_size, turn, when_done)
        export = Export(order)
        self._exports.append((window, export))
        return export


def _steps(window: Window) -> str:
    return f"the trace of steps {window['first_step']}-{window['last_step']}"
