"""A plan survives the environment variable it travels in."""

import pytest

from rankscope.capture.plan import Plan
from rankscope.capture.schedule import OnSignal, Schedule, TimeWindow, When


@pytest.mark.parametrize("when", [Schedule(1, 2, 3, 4, 5), TimeWindow(1.5, 2.0), OnSignal("USR2", 1, 2)])
def test_json_and_back(when: When) -> None:
    plan = Plan(
        when=when, ranks="all", command=("python", "täin.py"), activities=("cpu",), identity={"rank": 3}
    )
    assert Plan.from_json(plan.to_json()) == plan
