"""Steps for nsys and ncu: the engine counts them as for torch's profiler, but a window is a CUDA profiler range.

The report is the tool's, and the process around it keeps the rank's manifest; what is known only in here (which
steps, when, how many there were) goes to a small file that the other reads at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankscope.atomic_files import write_json
from rankscope.capture.plan import Plan
from rankscope.capture.rank import Identity
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.run_folder import rank_stem
from rankscope.errors import CaptureError
from rankscope.inapp.recorder import Recording, Region


class RangeRecorder:
    """Where the engine would run torch's profiler: cudaProfilerStart and Stop, and NVTX ranges for the steps."""

    def __init__(self) -> None:
        self.region: Region | None = None
        self.started = False
        self._warm = False
        self._in_step = False

    @property
    def busy(self) -> bool:
        return self._warm

    @property
    def script_profiles(self) -> bool:
        """torch's own profiler in the script may fail under nsys; that is between the two of them."""
        return False

    def warm_up(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise CaptureError(
                "nsys and ncu begin and end at a step by cudaProfilerStart, and torch finds no CUDA device",
                why="Without it the range never opens.",
                hint="Leave --steps out to record the whole run.",
            )
        self._warm = True

    def start(self) -> None:
        """The device is waited for first: no kernel of an earlier step may end up in the range."""
        import torch

        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        self.started = True

    def add_metadata(self, key: str, json_text: str) -> None:
        """A report of theirs holds none of ours; the manifest has it."""

    def begin_step(self, number: int) -> None:
        """torch's own name for a step: the reader of nsys reports finds steps by it."""
        import torch

        torch.cuda.nvtx.range_push(f"ProfilerStep#{number}")
        self._in_step = True
        if self.region is not None:
            self.region.begin()

    def end_step(self) -> None:
        if self._in_step:
            import torch

            if self.region is not None:
                self.region.end()
            self._in_step = False
            torch.cuda.nvtx.range_pop()

    def stop(self) -> Recording:
        import torch

        self.end_step()
        began = time.perf_counter_ns()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        self.started = self._warm = False
        return Recording(lambda _name: None, None, time.perf_counter_ns() - began)

    def abandon(self) -> None:
        if self.started:
            self.stop()
        self._warm = False

    def release(self) -> None:
        pass


class RangeFiles(RankFiles):
    """The rank as seen from inside: the run folder is the wrapper's, only a note goes out."""

    def __init__(self, plan: Plan, identity: Identity, env: Mapping[str, str]) -> None:
        super().__init__(plan, identity, env)
        assert plan.windows is not None
        self._note = Path(plan.windows) / f"{rank_stem(identity.rank)}.json"

    def claim(self) -> None:
        self.claimed = True

    def save(self) -> None:
        """The folder is gone when the wrapper is: then nobody asks for the note."""
        if self._note.parent.is_dir():
            write_json(self._note, self.manifest)


def nothing_to_export(_recorded: Any) -> None:
    """The engine's handler: the tool writes the report."""
