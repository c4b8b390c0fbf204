"""profiler_list.dat: torch's own operator table, by device time, and the memory overview below it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankscope.inapp.handlers import Recorded
from rankscope.inapp.memory import memory_overview

FILE = "profiler_list.dat"


class Summary:
    """Keeps the last window and writes its table at the end: the table costs torch a second or more, which the
    training thread should not pay in the middle of the loop.
    """

    def __init__(self, row_limit: int = -1) -> None:
        """``row_limit`` -1 is every operator."""
        self.row_limit = row_limit
        self.deepspeed = False
        self._last: Recorded | None = None

    def __call__(self, recorded: Recorded) -> None:
        self._last = recorded

    def close(self) -> None:
        """Write the file. Rank 0's has the plain name, the others' have their rank in it."""
        recorded, self._last = self._last, None
        if recorded is None:
            return
        averages = recorded.profile.key_averages()
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
        path.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n", encoding="utf-8")

    @staticmethod
    def path(recorded: Recorded) -> Path:
        if recorded.rank == 0:
            return recorded.folder / FILE
        stem, _, ending = FILE.partition(".")
        return recorded.folder / f"{stem}-{recorded.rank}-of-{recorded.world_size or 1}.{ending}"


def operator_table(averages: Any, row_limit: int) -> str:
    """torch's table, sorted by self device time; by self CPU time where no device was used."""
    on_device = any(_device_time(one) for one in averages)
    sort_by = _device_key(averages) if on_device else "self_cpu_time_total"
    text: str = averages.table(sort_by=sort_by, row_limit=row_limit, max_name_column_width=80)
    return text


def _device_time(average: Any) -> float:
    return float(getattr(average, "self_device_time_total", 0))


def _device_key(averages: Any) -> str:
    """torch's sort key is named after the device until 2.4 and in the table's own words since."""
    first = averages[0]
    return "self_device_time_total" if hasattr(first, "self_device_time_total") else "self_cuda_time_total"
