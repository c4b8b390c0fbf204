"""Hand a script to a scheduler and follow what becomes of it."""

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
"""The end is noticed within a tenth of what the job took: soon for a short one, with few questions for a long."""
_FORGOTTEN = 3
"""A scheduler may be asked before it knows the job, so one "unknown" is no answer yet."""


class State(NamedTuple):
    """Where a job is."""

    word: str
    ended: bool
    code: int | None


class Scheduler(NamedTuple):
    """One scheduler's words."""

    name: str
    title: str
    submit: tuple[str, ...]
    delete: tuple[str, ...]
    tell: tuple[str, ...]
    """TERM for the script alone, which then tells its ranks and still can collect."""
    job_id: Callable[[str], str | None]
    state: Callable[[str], State]
    dialect: Callable[[Spec], Dialect]
    launcher: str
    """What starts ranks there unless something else is asked for."""


def need(scheduler: Scheduler) -> None:
    if shutil.which(scheduler.submit[0]) is None:
        raise RankscopeError(
            f"there is no {scheduler.title} on this machine",
            why=f"{scheduler.submit[0]} is not on PATH.",
            hint="Write the script with --script FILE and submit it from a login node.",
        )


def submit(scheduler: Scheduler, script: Path) -> str:
    """The id of the job."""
    need(scheduler)
    done = _run([*scheduler.submit, str(script)])
    job = scheduler.job_id(done.stdout) if done.returncode == 0 else None
    if job is None:
        said = " ".join((done.stderr.strip() or done.stdout.strip() or "It said nothing.").split())
        raise RankscopeError(
            f"{scheduler.submit[0]} did not take the job",
            why=said,
            hint="Look at the script: the same command with --dry-run.",
        )
    return job


def follow(scheduler: Scheduler, job: str, say: Callable[[str], None]) -> State:
    """Wait for the end of a job; ``say`` gets every new state."""
    started, unknown, last = time.monotonic(), 0, ""
    while True:
        state = scheduler.state(job)
        unknown = unknown + 1 if state.word == "unknown" else 0
        if state.word != last and not (unknown and unknown < _FORGOTTEN):
            last = state.word
            say(state.word)
        if state.ended and (not unknown or unknown >= _FORGOTTEN):
            return state
        pause = max(_FIRST_PAUSE_S, _PAUSE_SHARE * (time.monotonic() - started))
        time.sleep(min(pause, _LONGEST_PAUSE_S))


def delete(scheduler: Scheduler, job: str, *, now: bool = False) -> bool:
    """End a job. True when its script was told and will collect what there is first."""
    need(scheduler)
    told = not now and scheduler.state(job).word == "running"
    words = scheduler.tell if told else scheduler.delete
    done = _run([*words, job])
    if done.returncode:
        raise RankscopeError(
            f"{words[0]} could not end job {job}",
            why=(done.stderr.strip() or done.stdout.strip()),
            hint=f"See: rankscope job status {job}",
        )
    return told


def ask(words: Sequence[str]) -> str | None:
    """A program's answer, or None when it is not there or does not know."""
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
            f"{words[0]} does not answer", why=str(error), hint="Is the scheduler up, and its PATH set?"
        ) from error
