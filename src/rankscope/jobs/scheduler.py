"""What all schedulers have in common: submit a script, follow the job, end it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.errors import RankscopeError
from rankscope.jobs.script import Dialect
from rankscope.jobs.spec import Spec

_ANSWER_S = 60
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_PAUSE_SHARE = 0.1
"""The pause between two queries, as a share of the time since submission: few queries for a long job."""
_FORGOTTEN = 3
"""How many times "unknown" must be the answer in a row: right after submission a scheduler may not know the job yet."""


class State(NamedTuple):
    """The state of a job."""

    word: str
    ended: bool
    code: int | None


class Scheduler(NamedTuple):
    """The commands of one scheduler."""

    name: str
    title: str
    submit: tuple[str, ...]
    delete: tuple[str, ...]
    terminate: tuple[str, ...]
    """Sends TERM to the script alone, which passes it on to its ranks and can still collect their files."""
    job_id: Callable[[str], str | None]
    state: Callable[[str], State]
    dialect: Callable[[Spec], Dialect]
    launcher: str
    """What starts ranks there by default."""


def require(scheduler: Scheduler) -> None:
    if shutil.which(scheduler.submit[0]) is None:
        raise RankscopeError(
            f"there is no {scheduler.title} on this machine",
            why=f"{scheduler.submit[0]} is not on PATH.",
            hint="Write the script with --script FILE and submit it from a login node.",
        )


def submit(scheduler: Scheduler, script: Path) -> str:
    """The id of the job."""
    require(scheduler)
    done = _run([*scheduler.submit, str(script)])
    job = scheduler.job_id(done.stdout) if done.returncode == 0 else None
    if job is None:
        reason = " ".join((done.stderr.strip() or done.stdout.strip() or "It gave no reason.").split())
        raise RankscopeError(
            f"{scheduler.submit[0]} refused the job",
            why=reason,
            hint="Print the script: the same command with --dry-run.",
        )
    return job


def follow(scheduler: Scheduler, job: str, on_state: Callable[[str], None]) -> State:
    """Wait for the end of a job; ``on_state`` gets every new state."""
    started, unknown, last = time.monotonic(), 0, ""
    while True:
        state = scheduler.state(job)
        unknown = unknown + 1 if state.word == "unknown" else 0
        if state.word != last and not (unknown and unknown < _FORGOTTEN):
            last = state.word
            on_state(state.word)
        if state.ended and (not unknown or unknown >= _FORGOTTEN):
            return state
        pause = max(_FIRST_PAUSE_S, _PAUSE_SHARE * (time.monotonic() - started))
        time.sleep(min(pause, _LONGEST_PAUSE_S))


def delete(scheduler: Scheduler, job: str, *, now: bool = False) -> bool:
    """End a job. True when its script was asked to end and will collect its files first."""
    require(scheduler)
    asked = not now and scheduler.state(job).word == "running"
    words = scheduler.terminate if asked else scheduler.delete
    done = _run([*words, job])
    if done.returncode:
        raise RankscopeError(
            f"{words[0]} could not end job {job}",
            why=(done.stderr.strip() or done.stdout.strip()),
            hint=f"See: rankscope job status {job}",
        )
    return asked


def ask(words: Sequence[str]) -> str | None:
    """A program's output, or None when it is missing or fails."""
    try:
        done = _run(words)
    except RankscopeError:
        return None
    return done.stdout if done.returncode == 0 else None


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            list(words), capture_output=True, text=True, errors="replace", timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RankscopeError(
            f"{words[0]} does not answer",
            why=str(error),
            hint="Check that the scheduler is running.",
        ) from error
