"""What was recorded on its way out: to the run folder's trace file, or to handlers; each file by a forked child."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.capture.rank_files import RankFiles
from rankscope.inapp.forked_export import Export, ExportOrder, Outcome
from rankscope.inapp.handlers import Handler, Recorded
from rankscope.inapp.job_log import Voice
from rankscope.inapp.recorder import Recording

Window = dict[str, Any]


class Outbox:
    """Every window goes through here once; the manifest gets an entry for each of its files."""

    def __init__(
        self, files: RankFiles, voice: Voice, max_size: int | None, handlers: Sequence[Handler]
    ) -> None:
        self._files = files
        self._voice = voice
        self._max_size = max_size
        self._handlers = handlers
        self._exports: list[tuple[Window, Export]] = []

    @property
    def busy(self) -> bool:
        """Whether a file is still being written (as far as ``collect`` knows)."""
        return bool(self._exports)

    def send(self, window: Window, recording: Recording, why: str | None) -> None:
        """``why`` is why the window is not whole."""
        if self._handlers:
            self._hand_over(window, recording, why)
        else:
            self._export(window, recording, why, self._files.target(window["index"]))

    def stalled(self, window: Window, nanoseconds: int) -> None:
        """Note what the window cost the training thread, in each of its entries."""
        window["stall_ns"] = nanoseconds
        for other in self._files.manifest["windows"]:
            if other["index"] == window["index"]:
                other["stall_ns"] = nanoseconds

    def collect(self) -> None:
        """Note the outcome of what has been written meanwhile."""
        for window, export in [pair for pair in self._exports if pair[1].poll()]:
            window.update(export.outcome or {})
            self._exports.remove((window, export))

    def wait(self, seconds: float) -> None:
        """Wait for all of it."""
        for window, export in self._exports:
            export.wait(seconds)
            window.update(export.outcome or {"state": "lost", "why": "it was still being written at the end"})
        self._exports.clear()

    def _hand_over(self, window: Window, recording: Recording, why: str | None) -> None:
        """Each handler gets what was recorded; one that fails does not keep it from the others."""
        facts = {key: self._files.manifest[key] for key in ("rank", "world_size", "host", "pid")}
        steps = {key: window[key] for key in ("index", "first_step", "last_step")}
        written: list[Path] = []

        def export(path: Path) -> None:
            self._export(dict(window) if written else window, recording, why, path)
            written.append(path)

        recorded = Recorded(
            profile=recording.keep, folder=self._files.folder, export=export, **facts, **steps
        )
        for handler in self._handlers:
            try:
                handler(recorded)
            except Exception as error:  # noqa: BLE001  (a handler of the user's must not stop the job)
                name = getattr(handler, "__name__", type(handler).__name__)
                self._voice.fail(
                    f"the handler {name} failed, the job goes on: {type(error).__name__}: {error}"
                )
        if not written:
            window.update(state="partial" if why else "whole", why=why, bytes=0)
            self._files.manifest["windows"].append(window)

    def _export(self, window: Window, recording: Recording, why: str | None, target: Path) -> None:
        window["file"] = target.name if target.parent == self._files.folder else str(target)
        window["state"] = "exporting"
        self._files.manifest["windows"].append(window)

        def when_done(outcome: Outcome) -> None:
            # In the exporter's process: this copy of the manifest is what is left if the rank is killed
            # meanwhile.
            if why is not None and outcome["state"] == "whole":
                outcome.update(state="partial", why=why)
            window.update(outcome)
            if outcome["state"] != "whole":
                self._voice.fail(
                    f"the trace of steps {window['first_step']}-{window['last_step']} is "
                    f"{outcome['state']}: {outcome['why']}"
                )
            self._files.save()

        turn = self._files.manifest["local_rank"] or 0
        order = ExportOrder(recording.save, target, self._max_size, turn, when_done)
        self._exports.append((window, Export(order)))
