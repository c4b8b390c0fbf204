"""A plan survives the environment variable it travels in."""

import argparse

import pytest

from rankscope.capture.plan import Plan, recorded_command
from rankscope.capture.schedule import OnSignal, Schedule, TimeWindow, When
from rankscope.cli import profile


@pytest.mark.parametrize("when", [Schedule(1, 2, 3, 4, 5), TimeWindow(1.5, 2.0), OnSignal("USR2", 1, 2)])
def test_json_and_back(when: When) -> None:
    plan = Plan(
        when=when, ranks="all", command=("python", "täin.py"), activities=("cpu",), identity={"rank": 3}
    )
    assert Plan.from_json(plan.to_json()) == plan


def test_the_limit_of_a_recorded_command_comes_before_its_secrets_are_sought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[str] = []

    def redacted_command(words: list[str]) -> list[str]:
        texts.extend(words)
        return words

    monkeypatch.setattr("rankscope.text.redaction.redacted_command", redacted_command)
    assert recorded_command(["a", "x" * 5000, "b"], 4000) == ["a", "... (2 more words)"]
    assert texts == ["a"]


@pytest.mark.parametrize(
    ("options", "most"),
    [("", 6), ("--wait 3", 6), ("--with-stack", 6)]
    + [
        (options, 0)
        for options in (
            *(
                "--active 3",
                "--steps 2:4",
                "--repeat 2",
                "--max-size 1GB",
                "--on-signal USR2",
                "--for 1s",
                "--watch",
            ),
            *("--tool nsys", "--tool nsys --wait 1", "--tool ncu --wait 1"),
        )
    ],
)
def test_only_torchs_default_window_may_become_longer(options: str, most: int) -> None:
    parser = argparse.ArgumentParser()
    profile.add_profile_options(parser, {})
    assert profile.plan_of(parser.parse_args(options.split()), ("true",)).active_up_to == most
