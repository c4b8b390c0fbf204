"""The alarms of a whole ring, as a watcher would have raised them."""

from __future__ import annotations

from rankscope.records import dataclass
from rankscope.watch.alarms import Alarm, AlarmBook
from rankscope.watch.judge import STEPS, judge
from rankscope.watch.rings import RECENT
from rankscope.watch.step_table import StepTable

_MOST_LOOKS = 100
_SETTLES = 50
"""Steps after its begin in which a later look at an alarm has better figures: the begin is still in the window."""


@dataclass(frozen=True)
class PastAlarm:
    """An alarm and how long it lasted."""

    alarm: Alarm
    last_step: int
    is_open: bool
    """Still raised at the last step."""


def alarms_over(table: StepTable) -> list[PastAlarm]:
    """All alarms, in the order in which they were raised."""
    count = len(table.steps)
    every = max(STEPS, -(-count // _MOST_LOOKS))
    book = AlarmBook()
    found: list[Alarm] = []
    last: dict[int, int] = {}
    ends = [*range(count, STEPS - 1, -every)][::-1]
    for end in ends:
        now = judge(table.rows(slice(max(end - RECENT, 0), end)), every)
        found += book.new(now)
        for alarm in now:
            place = max((n for n, one in enumerate(found) if one.key == alarm.key), default=None)
            if place is None:
                continue  # a long step that recurs
            last[place] = alarm.step
            if (
                found[place].since_step is not None
                and alarm.step - (found[place].since_step or 0) <= _SETTLES
            ):
                found[place] = alarm
    final = int(table.steps[-1])
    return [
        PastAlarm(alarm, last[place], last[place] == final and alarm.kind != "spike")
        for place, alarm in enumerate(found)
    ]
