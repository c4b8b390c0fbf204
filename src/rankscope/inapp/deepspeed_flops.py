"""profiler_ds.txt: DeepSpeed's flops profile of a DeepSpeed engine, and its memory figures."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from pathlib import Path
from typing import Any

from rankscope.capture.run_folder import FLOPS_PROFILE
from rankscope.capture.schedule import NONE


def is_deepspeed_engine(model: Any) -> bool:
    """Whether ``model`` is a DeepSpeed engine; deepspeed is not imported for this."""
    engine = sys.modules.get("deepspeed.runtime.engine")
    return engine is not None and isinstance(model, engine.DeepSpeedEngine)


class FlopsProfile:
    """Profiles one step with DeepSpeed's flops profiler: the warm-up step, because counting slows it down."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self._engine = engine
        self._file = folder / FLOPS_PROFILE
        self._profiler: Any = None
        self._done = False

    def follow(self, action: int) -> None:
        """A step with this profiler action begins: start at the first that is not idle, end at the next."""
        if self._profiler is not None:
            self.end()
        elif action != NONE and not self._done:
            from deepspeed.profiling.flops_profiler import FlopsProfiler

            self._profiler = FlopsProfiler(self._engine.module, ds_engine=self._engine)
            self._profiler.start_profile()

    def end(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        self._done = True
        profiler.stop_profile()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        try:
            profiler.print_model_profile(profile_step=self._engine.global_steps, output_file=str(self._file))
        finally:
            profiler.end_profile()


def memory_usage() -> str:
    """The output of DeepSpeed's see_memory_usage."""
    from deepspeed.runtime.utils import see_memory_usage
    from deepspeed.utils.logging import logger

    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        # It logs or prints, depending on the version.
        with contextlib.redirect_stdout(text):
            see_memory_usage("At the end of profiling", force=True)
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    return text.getvalue()
