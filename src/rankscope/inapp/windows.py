"""The recorded windows of a rank, one after another: open, record steps, close, export.

A window goes to a trace file in the run folder, or to handlers. A forked child writes each file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.capture.rank_files import RankFiles, clock_anchor
from rankscope.inapp.added_events import AddedEvents, header_text
from rankscope.inapp.collective_calls import CollectiveCalls
from rankscope.inapp.cuda_range import CudaRangeRecorder
from rankscope.inapp.forked_export import Export, ExportOrder, Outcome
from rankscope.inapp.host_cpu import HostCpu
from rankscope.inapp.job_log import JobLog
from rankscope.inapp.python_samples import PythonSamples
from rankscope.inapp.sigterm import SigtermGuard
from rankscope.inapp.torch_recorder import Recording, TorchRecorder, never_free
from rankscope.inapp.window_handlers import Handler, Recorded
from rankscope.units import format_bytes, format_rounded

Window = dict[str, Any]
BY_STEPS, BY_TIME = "steps", "time"
"""The kinds of windows in the manifest."""
# How long training waits for a trace that on_trace_ready writes.
MOST_WAIT_S = 600.0


class Windows:
    """At most one window is open. Exports of earlier ones may still run, in child processes.

    ``handlers`` receive each window; without them it becomes one trace file in the run folder.
    """

    def __init__(
        self,
        files: RankFiles,
        log: JobLog,
        recorder: TorchRecorder | CudaRangeRecorder,
        sigterm: SigtermGuard,
        max_size: int | None,
        handlers: Sequence[Handler],
    ) -> None:
        self.recorder = recorder
        self._files = files
        self._log = log
        self._sigterm = sigterm
        self._max_size = max_size
        self._handlers = handlers
        self._exports: list[tuple[Window, Export]] = []
        self._window: Window | None = None
        self._opened = 0
        self._events: object = None
        self._added = AddedEvents()
        self._host_cpu: HostCpu | None = None
        self._samples: PythonSamples | None = None
        self._calls = CollectiveCalls()

    @property
    def is_open(self) -> bool:
        return self._window is not None

    @property
    def exporting(self) -> bool:
        """Whether a file was still being written at the last ``collect_exports``."""
        return bool(self._exports)

    def open(self, kind: str) -> None:
        self._files.claim()
        self._events = None  # torch frees the previous window's events here, not while steps are recorded
        self._window = {"index": self._opened, "kind": kind, "state": "recording"}
        self._opened += 1
        if self.recorder.saves_at_sigterm:
            self._sigterm.on()
        self.recorder.warm_up()

    def record_step(self, number: int) -> None:
        """Step ``number`` begins and is recorded; the window opens and starts as needed."""
        if not self.recorder.busy:
            self.open(BY_STEPS)
        if not self.recorder.started:
            self.start(number)
        self._begin_step(number)

    def _begin_step(self, number: int) -> None:
        if self._host_cpu is not None:
            self._host_cpu.step(number)
        self.recorder.begin_step(number)

    def start(self, step: int) -> None:
        assert self._window is not None
        self._added = AddedEvents()
        if isinstance(self.recorder, TorchRecorder):
            with contextlib.suppress(Exception):
                self._host_cpu = HostCpu(self._added, self._files.manifest["local_size"])
        self.recorder.start()
        if isinstance(self.recorder, TorchRecorder) and not self.recorder.has_stacks:
            with contextlib.suppress(Exception):
                self._samples = PythonSamples(self._added)
        self._write_header({})
        with contextlib.suppress(Exception):
            self._calls.begin()
        self._window.update(first_step=step, start=clock_anchor())

    def _write_header(self, fields: dict[str, Any]) -> None:
        """Into the trace, so that a file without its manifest has it. The last call before the stop counts."""
        identity = {key: self._files.manifest[key] for key in ("job", "rank", "rank_source", "role", "host")}
        self.recorder.add_metadata("rankscope", header_text(identity, fields))

    def _added_fields(self, why: str | None) -> dict[str, Any]:
        """What the capture knows of the window and torch's profiler does not; ``why`` it ended early."""
        host_cpu, fields = self._host_cpu, dict[str, Any]()
        fields["ended"] = {"why": why, "unix_ns": time.time_ns()} if why else None
        with contextlib.suppress(Exception):
            fields["collectives"] = self._calls.end()
        with contextlib.suppress(Exception):
            fields["host_cpu"] = host_cpu.fields() if host_cpu is not None else None
        return {name: field for name, field in fields.items() if field}

    def forked(self) -> None:
        """In a forked child of the rank."""
        self._stop_observers()
        self.recorder.forked()

    def _stop_observers(self) -> None:
        observers = self._host_cpu, self._samples
        self._host_cpu = self._samples = None
        for observer in observers:
            if observer is not None:
                observer.off()

    def next_step(self, number: int) -> None:
        """Inside a time window: mark where one step ends and the next begins."""
        self.recorder.end_step()
        self._begin_step(number)

    def close(self, step: int, why: str | None = None) -> None:
        """Stop recording and start the export. ``step`` is the current step; ``why`` marks the window as partial.

        The pause of training has two parts, torch's stop and our notes and export; both are measured.
        """
        window, self._window = self._window, None
        assert window is not None
        last = max(step if window["kind"] != BY_STEPS else step - 1, window["first_step"])
        # A window of one step is left as it is: the program does not mark the end of that step.
        if why or step > window["first_step"]:
            self.recorder.mark_unfinished()
        began = time.perf_counter_ns()
        with contextlib.suppress(Exception):
            self._write_header(self._added_fields(why))
        self._stop_observers()
        noted_ns = time.perf_counter_ns() - began
        recording = self.recorder.stop()
        began = time.perf_counter_ns() - noted_ns
        window.update(last_step=last, end=clock_anchor(), stop_ns=recording.stop_ns)
        if self._handlers:
            self._call_handlers(window, recording, why)
        else:
            self._export(window, recording, why, self._files.target(window["index"]))
        stall_ns = recording.stop_ns + time.perf_counter_ns() - began
        recording.paused(stall_ns)
        for entry in (window, *self._files.manifest["windows"]):  # handlers may have written several files
            if entry["index"] == window["index"]:
                entry["stall_ns"] = stall_ns
        self._events = recording.events
        self._log.debug(
            f"recorded steps {window['first_step']}-{last}; training was paused for {format_rounded('ns', stall_ns)}"
        )

    def drop(self) -> None:
        """End an open window whose recording is not wanted; the next one gets its number."""
        self._opened -= self._window is not None
        self._window = None
        self._stop_observers()
        self._calls.off()
        self.recorder.abandon()

    def collect_exports(self) -> None:
        """Note the outcomes of exports that have ended, and say which traces are on disk.

        SIGTERM needs no handler once nothing is left to save.
        """
        self._sigterm.check()
        for window, export in [pair for pair in self._exports if pair[1].poll()]:
            window.update(export.outcome or {})
            self._exports.remove((window, export))
            if window["state"] == "whole":
                pause = format_rounded("ns", window["stall_ns"])
                self._log.progress(
                    f"{_steps(window)} is on disk: {self._files.folder / window['file']} "
                    f"({format_bytes(window['bytes'], 1)}); training was paused for {pause}"
                )
        if not self._exports and self._window is None:
            self._sigterm.off()

    def wait_for_exports(self, seconds: float) -> bool:
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
            leads=self._log.leads,
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
        order = ExportOrder(recording.save, target, self._max_size, turn, when_done, self._added)
        export = Export(order)
        self._exports.append((window, export))
        return export

    def leave_events_to_exit(self) -> None:
        never_free(self._events)

    def release(self) -> None:
        """Leave torch and SIGTERM as they were found."""
        self._sigterm.off()
        self.recorder.release()


def _steps(window: Window) -> str:
    return f"the trace of steps {window['first_step']}-{window['last_step']}"
