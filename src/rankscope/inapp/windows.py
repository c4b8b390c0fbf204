"""The recorded windows of a rank, one after another: open, record steps, close, export."""

from __future__ import annotations

import json
import time
from typing import Any

from rankscope.capture.rank_files import RankFiles, clock_anchor
from rankscope.inapp.cuda_range import CudaRangeRecorder
from rankscope.inapp.job_log import JobLog
from rankscope.inapp.sigterm import SigtermGuard
from rankscope.inapp.torch_recorder import Region, TorchRecorder, never_free
from rankscope.inapp.window_export import WindowExporter
from rankscope.units import format_ns

BY_STEPS, BY_TIME = "steps", "time"
"""The kinds of windows in the manifest."""


class Windows:
    """At most one window is open. Exports of earlier ones may still run, in child processes."""

    def __init__(
        self,
        files: RankFiles,
        log: JobLog,
        recorder: TorchRecorder | CudaRangeRecorder,
        exporter: WindowExporter,
        sigterm: SigtermGuard,
    ) -> None:
        self._files = files
        self._log = log
        self._recorder = recorder
        self._exporter = exporter
        self._sigterm = sigterm
        self._window: dict[str, Any] | None = None
        self._opened = 0
        self._events: object = None

    @property
    def is_open(self) -> bool:
        return self._window is not None

    @property
    def recording(self) -> bool:
        """Whether the open window has passed its warm-up."""
        return self._recorder.started

    @property
    def exporting(self) -> bool:
        return self._exporter.busy

    @property
    def script_profiles(self) -> bool:
        """Whether the script's own profiler runs now."""
        return self._recorder.script_profiles

    def set_region(self, region: Region) -> None:
        """Begin and end this range with each recorded step."""
        self._recorder.region = region

    def open(self, kind: str) -> None:
        self._files.claim()
        self._events = None  # torch frees the previous window's events here, not while steps are recorded
        self._window = {"index": self._opened, "kind": kind, "state": "recording"}
        self._opened += 1
        if self._recorder.saves_at_sigterm:
            self._sigterm.on()
        self._recorder.warm_up()

    def record_step(self, number: int) -> None:
        """Step ``number`` begins and is recorded; the window opens and starts as needed."""
        if not self._recorder.busy:
            self.open(BY_STEPS)
        if not self._recorder.started:
            self.start(number)
        self._recorder.begin_step(number)

    def start(self, step: int) -> None:
        assert self._window is not None
        self._recorder.start()
        identity = {key: self._files.manifest[key] for key in ("job", "rank", "rank_source", "host")}
        self._recorder.add_metadata("rankscope", json.dumps(identity))
        self._window.update(first_step=step, start=clock_anchor())

    def next_step(self, number: int) -> None:
        """Inside a time window: mark where one step ends and the next begins."""
        self._recorder.end_step()
        self._recorder.begin_step(number)

    def end_step(self) -> None:
        self._recorder.end_step()

    def close(self, step: int, why: str | None = None) -> None:
        """Stop recording and start the export. ``step`` is the current step; ``why`` marks the window as partial.

        The pause of training has two parts, torch's stop and our export; both are measured.
        """
        window, self._window = self._window, None
        assert window is not None
        last = max(step if window["kind"] != BY_STEPS else step - 1, window["first_step"])
        # A window of one step is left as it is: the program does not mark the end of that step.
        if why or step > window["first_step"]:
            self._recorder.mark_unfinished()
        recording = self._recorder.stop()
        began = time.perf_counter_ns()
        window.update(last_step=last, end=clock_anchor(), stop_ns=recording.stop_ns)
        self._exporter.send(window, recording, why)
        stall_ns = recording.stop_ns + time.perf_counter_ns() - began
        recording.paused(stall_ns)
        self._exporter.record_stall(window, stall_ns)
        self._events = recording.events
        self._log.debug(
            f"recorded steps {window['first_step']}-{last}; training was paused for "
            f"{format_ns(window['stall_ns'])}: stop {format_ns(window['stop_ns'])} (torch), "
            f"export {format_ns(window['stall_ns'] - window['stop_ns'])}"
        )

    def drop(self) -> None:
        """End an open window whose recording is not wanted; the next one gets its number."""
        self._opened -= self._window is not None
        self._window = None
        self._recorder.abandon()

    def collect_exports(self) -> None:
        """Note the outcomes of finished exports; SIGTERM needs no handler once nothing is left to save."""
        self._sigterm.check()
        self._exporter.collect()
        if not self._exporter.busy and self._window is None:
            self._sigterm.off()

    def wait_for_exports(self, seconds: float) -> bool:
        """Returns False where a folder does not answer."""
        return self._exporter.wait(seconds)

    def leave_events_to_exit(self) -> None:
        never_free(self._events)

    def forked(self) -> None:
        """In a forked child of the rank."""
        self._recorder.forked()

    def release(self) -> None:
        """Leave torch and SIGTERM as they were found."""
        self._sigterm.off()
        self._recorder.release()
