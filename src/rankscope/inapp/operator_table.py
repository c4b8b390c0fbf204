"""profiler_list.dat: torch's operator table by device time, followed by the memory overview."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from rankscope.capture.run_folder import OPERATOR_TABLE
from rankscope.inapp.memory import memory_overview
from rankscope.inapp.trace_stream import OUR_FRAME
from rankscope.inapp.window_handlers import Recorded

ROW_LIMIT = 100


class Summary:
    """Writes the table of the last window at the end: torch needs a second or more for it, which would pause training
    in the middle of the loop.
    """

    def __init__(self, row_limit: int = ROW_LIMIT, *, prints: bool = False) -> None:
        """``row_limit`` -1 shows every operator. With ``prints`` one rank also prints the file on stdout."""
        self.row_limit = row_limit
        self.prints = prints
        self.deepspeed = False
        self._last: Recorded | None = None

    def __call__(self, recorded: Recorded) -> None:
        self._last = recorded

    def close(self) -> None:
        """Write the file: the plain name for rank 0, names with the rank for the others."""
        recorded, self._last = self._last, None
        if recorded is None:
            return
        averages = recorded.profile.key_averages()
        # with_stack has our own frames too
        averages[:] = [average for average in averages if not OUR_FRAME.match(average.key.encode())]
        window = f"rank {recorded.rank}, steps {recorded.first_step}-{recorded.last_step}"
        parts = [
            f"Operators by device time ({window})",
            operator_table(averages, self.row_limit),
            "Memory at the end",
            memory_overview(),
        ]
        if self.deepspeed:
            from rankscope.inapp.deepspeed_flops import memory_usage

            parts += ["DeepSpeed's memory figures (see_memory_usage)", memory_usage()]
        path = self.path(recorded)
        text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
        path.write_text(text, encoding="utf-8")
        if self.prints and recorded.leads:
            # as a script that prints key_averages() itself; the job may have closed stdout
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stdout.write(text)
                sys.stdout.flush()

    @staticmethod
    def path(recorded: Recorded) -> Path:
        rank = f"-{recorded.rank}-of-{recorded.world_size or 1}" if recorded.rank else ""
        return recorded.folder / OPERATOR_TABLE.format(rank)


def operator_table(averages: Any, row_limit: int) -> str:
    """torch's table, sorted by self device time, or by self CPU time where no device was used."""
    sort_by = "self_cpu_time_total"
    if any(getattr(average, "self_device_time_total", 0) for average in averages):
        sort_by = "self_device_time_total"
    text: str = averages.table(sort_by=sort_by, row_limit=row_limit, max_name_column_width=80)
    return text
