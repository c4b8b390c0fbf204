"""CUDA profiler ranges: cudaProfilerStart and cudaProfilerStop, which `nsys -c cudaProfilerApi` and ncu wait for.

For code that marks a range itself, and for the steps of `rankscope profile --tool nsys|ncu`: there the engine counts
steps as for torch's profiler, but a window is a CUDA profiler range. The tool writes the report, and the process
around it writes the rank's manifest. The steps and times, which only this process has, go to a small JSON file that
the other process reads at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankscope.capture.plan import Plan
from rankscope.capture.rank import Identity
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.run_folder import rank_stem
from rankscope.capture.schedule import unfinished_step
from rankscope.errors import CaptureError
from rankscope.files import write_json
from rankscope.inapp.job_log import JobLog, current_identity
from rankscope.inapp.nvtx_ranges import ModuleRanges, Nvtx, OpRanges, find_nvtx
from rankscope.inapp.torch_recorder import Recording, Region


@contextmanager
def cuda_profiler_range() -> Iterator[None]:
    """Capture only what runs inside, where nsys or ncu was told to wait for a range.

    The device is synchronized at both ends, so that every kernel falls on the side where it was launched.
    Without a CUDA device, one line on stderr reports that nothing is marked, and the code runs.
    """
    import torch

    if not torch.cuda.is_available():
        JobLog(current_identity().rank).warning("cuda_profiler_range marks nothing: there is no CUDA device")
        yield
        return
    _call("cudaProfilerStart")
    try:
        yield
    finally:
        _call("cudaProfilerStop")


def _call(function: str) -> None:
    import torch

    torch.cuda.synchronize()
    getattr(torch.cuda.cudart(), function)()


class CudaRangeRecorder:
    """Takes the place of TorchRecorder: windows are CUDA profiler ranges, steps are NVTX ranges.

    Without ``opens_range`` the tool records the whole run, and the steps of the windows are only marked in it.
    ``warn`` receives what cannot be marked.
    """

    def __init__(
        self,
        *,
        opens_range: bool,
        extra: Sequence[str] = (),
        warn: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.region: Region | None = None
        self.started = False
        self.saves_at_sigterm = opens_range
        self._opens_range = opens_range
        self._extra = extra
        self._extra_ranges: list[OpRanges | ModuleRanges] = []
        self._warn = warn
        self._warm = False
        self._nvtx: Nvtx | None = None
        self._in_step = False
        self._step_range: Any = None
        self._step_number = 0

    @property
    def busy(self) -> bool:
        return self._warm

    def script_profiles(self, _steps: int) -> bool:
        """A torch profiler of the script does not conflict with a CUDA profiler range."""
        return False

    def warm_up(self) -> None:
        import torch

        if self._opens_range and not torch.cuda.is_available():
            raise CaptureError(
                "nsys and ncu begin and end at a step by cudaProfilerStart, and torch finds no CUDA device",
                why="Without it the range never opens.",
                hint="Leave --steps out to record the whole run.",
            )
        self._nvtx = find_nvtx()
        if self._nvtx is None:
            self._warn(
                "steps are not marked: torch has no NVTX here, and the tool records none (-t ...,nvtx)"
            )
        self._warm = True

    def start(self) -> None:
        if self._opens_range:
            _call("cudaProfilerStart")
        self.started = True
        for name in self._extra:
            self._begin_extra(name)

    def add_metadata(self, key: str, json_text: str) -> None:
        """Nothing: reports of nsys and ncu hold no metadata of ours; the manifest has it."""

    def begin_step(self, number: int) -> None:
        """Named as torch names a step: the nsys reader finds steps by this name.

        A started range, not a pushed one: the script may have ranges of its own open where a step ends, and ncu counts
        the kernels of the backward pass, which another thread launches, as inside it.
        """
        if self._nvtx is not None:
            self._step_range = self._nvtx.start(f"ProfilerStep#{number}")
            self._step_number = number
        self._in_step = True
        if self.region is not None:
            self.region.begin()

    def end_step(self) -> None:
        if self._in_step:
            if self.region is not None:
                self.region.end()
            if self._nvtx is not None:
                self._nvtx.end(self._step_range)
        self._in_step = False

    def mark_unfinished(self) -> None:
        """This tells the step from those that ended. Left open, it would last until the tool has ended."""
        if self._in_step and self._nvtx is not None:
            self._nvtx.end(self._nvtx.start(unfinished_step(self._step_number)))

    def stop(self) -> Recording:
        self.end_step()
        began = time.perf_counter_ns()
        while self._extra_ranges:
            self._extra_ranges.pop().end()
        if self._opens_range:
            _call("cudaProfilerStop")
        self.started = self._warm = False
        return Recording(lambda _name: None, None, time.perf_counter_ns() - began)

    def _begin_extra(self, name: str) -> None:
        """--nvtx: ranges of operators or modules. Without them the recording goes on."""
        if name == "modules" and self._nvtx is None:
            return  # the missing NVTX was reported
        try:
            ranges = OpRanges() if self._nvtx is None or name == "ops" else ModuleRanges(self._nvtx)
            ranges.begin()
        except Exception as error:  # noqa: BLE001  (torch's profiler is in use, or this build of torch has no NVTX)
            self._warn(f"--nvtx {name} marks nothing: {error}")
        else:
            self._extra_ranges.append(ranges)

    def abandon(self) -> None:
        if self.started:
            self.stop()
        self._warm = False

    def forked(self) -> None:
        """Nothing of the range is in this process."""

    def release(self) -> None:
        pass


class CudaRangeFiles(RankFiles):
    """The files of a rank under nsys or ncu: only a JSON file for the process that owns the run folder."""

    def __init__(self, plan: Plan, identity: Identity, env: Mapping[str, str]) -> None:
        super().__init__(plan, identity, env)
        assert plan.windows is not None
        self._path = Path(plan.windows) / f"{rank_stem(identity.rank)}.json"

    def claim(self) -> None:
        """The file tells the other process that steps are counted here, also when this one is killed."""
        if not self.claimed:
            self.claimed = True
            self.save()

    def save(self) -> None:
        """Nothing is written once the other process has ended and removed the folder."""
        if self._path.parent.is_dir():
            write_json(self._path, self.manifest)


def export_nothing(_recorded: Any) -> None:
    """The window handler: the tool writes the report."""
