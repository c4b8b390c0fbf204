"""The processes that read files: forked from one that has loaded the modules."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from rankscope.errors import StoreError
from rankscope.store import pool
from rankscope.store.pool import run_calls
from rankscope.store.worker import Call


def answers(function: Any, count: int = 5, jobs: int = 2, **arguments: Any) -> list[Any]:
    calls = {number: Call(function, arguments, f"call {number}") for number in range(count)}
    outcomes = dict(run_calls(calls, jobs))
    return [outcomes[number] for number in range(count)]


@pytest.mark.slow
def test_all_workers_are_forked_from_one_process_that_stays_for_the_next_calls() -> None:
    first, second = answers(os.getppid), answers(os.getppid)
    assert len({*first, *second}) == 1 and first[0] != os.getpid()


def test_no_more_workers_than_jobs() -> None:
    assert len({*answers(os.getpid, count=9, jobs=3)}) <= 3


def test_workers_have_one_thread_for_matrices() -> None:
    assert answers(os.getenv, key="OPENBLAS_NUM_THREADS") == ["1"] * 5


@pytest.mark.slow
def test_a_process_that_was_killed_is_replaced() -> None:
    (before,) = {*answers(os.getppid)}
    os.kill(before, signal.SIGKILL)
    (after,) = {*answers(os.getppid)}
    assert after != before


@pytest.mark.slow
def test_another_environment_is_that_of_the_next_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(os.getppid)
    monkeypatch.setenv("RANKSCOPE_TEST_VALUE", "7")
    assert answers(os.getenv, key="RANKSCOPE_TEST_VALUE") == ["7"] * 5


def test_a_worker_that_fails_says_why() -> None:
    failed = answers(os.getenv, count=2, no_such_argument=1)
    assert all("no_such_argument" in outcome.why for outcome in failed)


def test_a_process_that_cannot_start_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    pool._end_forker()
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(StoreError, match="cannot start a process") as caught:
        answers(os.getpid)
    assert caught.value.why and caught.value.hint
