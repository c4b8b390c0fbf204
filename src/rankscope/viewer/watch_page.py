"""The route of the page /watch: the telemetry of a job, as it is now."""

from __future__ import annotations

from pathlib import Path

from rankscope.text.json_values import plain
from rankscope.viewer.answers import Answer
from rankscope.watch.state import like_the_median, read_state, worst_ranks

_SHOWN = 20


def watch(run: Path) -> Answer:
    """The state of `rankscope watch`, with the ranks to look at first instead of all of them."""
    state, _ = read_state(run)
    shown = {
        "ranks": worst_ranks(state, _SHOWN),
        "count": len(state["ranks"]),
        "like_median": like_the_median(state),
    }
    answer: Answer = plain({**state, "run": run.resolve().name, **shown})
    return answer
