"""Faults of a job with --watch: whatever happens to it or to its telemetry, its outcome is that of the same job alone.

The telemetry is written once a second, so these jobs train until a signal ends them, some seconds later.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from faults.capture_trials import ODD, USUAL, USUAL_DEADLY, Kinds, Signal, Trial, trials_of
from faults.outcome import Part

_WATCH = ("--watch", "--hang-after", "1s")
_HANDLE, _DIE = ("--torch", "--handle", "--end", "5"), ("--torch", "--deadly")


def _watched(
    kind: str, words: tuple[str, ...], names: tuple[str, ...], target: str, disk: str = ""
) -> Callable[[Random], Trial]:
    """A job that a signal ends after the telemetry was written some times."""

    def make(random: Random) -> Trial:
        signals = (Signal(random.choice(names), target, random.uniform(3, 8)),)
        return Trial(kind, words, options=_WATCH, signals=signals, disk=disk)

    return make


def _odd(random: Random) -> Trial:
    words = (
        "--torch",
        "--odd",
        random.choice(ODD),
        "--end",
        random.choice(("0", "_exit:9", "raise", "SEGV")),
    )
    return Trial("scripts that close, fork, wait, look around", words, options=_WATCH)


def _beside_a_capture(random: Random) -> Trial:
    words = ("--torch", "--end", random.choice(("0", "7", "_exit:9", "KILL", "raise")))
    return Trial("beside a capture, a rank that dies", words, options=(*_WATCH, "--steps", "2:4"))


def _quota(random: Random) -> Trial:
    limit = random.choice((0, 1, 4, 64, 600))
    words = ("--torch", "--end", random.choice(("0", "5")))
    return Trial("file size limit (quota)", words, options=_WATCH, file_limit=limit)


def _torchrun(random: Random) -> Trial:
    end = random.choice(("7@1", "_exit:9@1", "KILL@0", "SEGV@1", "0"))
    launcher = ("torchrun", "--standalone", "--nproc-per-node", "2", "--no-python")
    return Trial(
        "torchrun, a rank dies", ("--torch", "--end", end), launcher=launcher, options=_WATCH, lines="job"
    )


KINDS: Kinds = (
    _watched("SIGKILL to the rank", _DIE, ("KILL",), "rank"),
    _watched("the run folder vanishes", (*_HANDLE, "--odd", "vanish"), USUAL, "rank"),
    _watched("the disk of the run folder is full", _HANDLE, USUAL, "rank", disk="full"),
    _watched("SIGTERM to the front", _DIE, ("TERM",), "front"),
    _watched("a handled signal to the group", _HANDLE, USUAL, "group"),
    _odd,
    _watched("the telemetry's file hangs", _HANDLE, USUAL, "rank", disk="stuck ring"),
    _beside_a_capture,
    _watched("a read-only run folder", _HANDLE, USUAL, "rank", disk="readonly"),
    _watched("a deadly signal to the rank", _DIE, USUAL_DEADLY, "rank"),
    _quota,
    _torchrun,
)

PART = Part("watch", trials_of(KINDS), many=60, few=3)
