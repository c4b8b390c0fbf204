"""A job that makes no step: which rank is the odd one out, from the ring files and from the stacks that ranks wrote."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.capture.telemetry_ring import FOLDER, PHASES
from rankscope.records import dataclass
from rankscope.watch.alarms import DATA_LOADING, HANG, HOST, UNKNOWN, Alarm, who
from rankscope.watch.rings import RankRing

LOST_AFTER_S = 60.0
"""A rank that has not written for so long has ended without saying so, or its node has. Ranks write every second, and
the clocks of nodes may differ by seconds."""
_DEFAULT_HANG_S = 600.0
ENDED = PHASES.index("ended")
_WAITS = ("collective", "backward")
"""What ranks do that wait for others: with gloo, DDP waits inside backward."""
_STACKS = re.compile(r"stacks-rank-(\d+)\.txt")
_THREAD = re.compile(r"(?:Current thread|Thread) 0x")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)')
SHOWN_FRAMES = 5


def judged_at(rings: Sequence[RankRing], clock_unix_ns: int) -> int:
    """The time to judge by: now, or when the job was last alive."""
    last = max(ring.header.alive_unix_ns for ring in rings)
    return min(clock_unix_ns, last + int(LOST_AFTER_S * 1e9) // 2)


def is_over(rings: Sequence[RankRing], clock_unix_ns: int) -> bool:
    """Whether all ranks have ended, or none writes any more."""
    last = max(ring.header.alive_unix_ns for ring in rings)
    return all(ring.header.phase == ENDED for ring in rings) or clock_unix_ns - last > LOST_AFTER_S * 1e9


def is_lost(ring: RankRing, at_unix_ns: int) -> bool:
    return ring.header.phase != ENDED and at_unix_ns - ring.header.alive_unix_ns > LOST_AFTER_S * 1e9


def without_step_s(ring: RankRing, at_unix_ns: int) -> float:
    """For how long a rank has made no step, by its own clock while it writes."""
    alive = at_unix_ns if is_lost(ring, at_unix_ns) else ring.header.alive_unix_ns
    return max(alive - ring.last_end_unix_ns, 0) / 1e9


def phase_of(ring: RankRing) -> str:
    if ring.off:
        return "off"
    return PHASES[ring.header.phase] if 0 <= ring.header.phase < len(PHASES) else "unknown"


def stuck_ranks(
    rings: Sequence[RankRing], at_unix_ns: int, hang_after_s: float | None = None
) -> list[RankRing]:
    """Ranks that have not ended and make no step, when one of them has made none for too long: as the job says, or for
    `hang_after_s`."""
    training = [ring for ring in rings if ring.header.phase != ENDED and ring.header.records]
    limits = [float(ring.about.get("hang_after_s") or _DEFAULT_HANG_S) for ring in training]
    limit = hang_after_s or min(limits, default=_DEFAULT_HANG_S)
    times = [without_step_s(ring, at_unix_ns) for ring in training]
    # They stop one after another, and all of them are to be compared.
    return [
        ring for ring, time in zip(training, times, strict=True) if max(times) > limit and time > limit / 2
    ]


def hangs(rings: Sequence[RankRing], at_unix_ns: int, hang_after_s: float | None = None) -> list[Alarm]:
    """One alarm when ranks are stuck; it names the odd ones out."""
    stuck = stuck_ranks(rings, at_unix_ns, hang_after_s)
    if not stuck:
        return []
    odd = odd_ranks(stuck, at_unix_ns)
    last = min(ring.last_step for ring in stuck)
    seconds = max(without_step_s(ring, at_unix_ns) for ring in stuck)
    culprit = f"{who(odd.ranks)}: {odd.why}" if odd.ranks else odd.why
    ranks = tuple(odd.ranks or sorted(ring.rank for ring in stuck))
    since_unix_ns = min(ring.last_end_unix_ns for ring in stuck)
    text = f"{len(stuck)} of {len(rings)} ranks have made no step for {seconds:.0f} s, since step {last}; {culprit}"
    hint = "The ranks write their stacks to the run folder: rankscope stats RUN -r hang"
    return [
        Alarm(HANG, odd.cause, ranks, "", last, last, since_unix_ns, seconds * 1e9, "ns", 1.0, text, hint)
    ]


class Odd(NamedTuple):
    """The ranks that the others wait for."""

    ranks: list[int]
    """None: no outlier."""
    why: str
    cause: str


def odd_ranks(stuck: Sequence[RankRing], at_unix_ns: int) -> Odd:
    """Those that no longer write, else those that are behind, else those that do not wait while the others do."""
    lost = sorted(ring.rank for ring in stuck if is_lost(ring, at_unix_ns))
    if lost and len(lost) < len(stuck):
        return Odd(lost, "no longer writes; its process or node has ended or is stopped", UNKNOWN)
    behind = min(ring.last_step for ring in stuck)
    odd = [ring for ring in stuck if ring.last_step == behind]
    if len(odd) == len(stuck):
        odd = [ring for ring in stuck if phase_of(ring) not in _WAITS]
    if not odd or len(odd) == len(stuck):
        return Odd([], "no rank stands out by its step or by what it does", UNKNOWN)
    phase = Counter(map(phase_of, odd)).most_common(1)[0][0]
    others = max(ring.last_step for ring in stuck)
    position = f"after step {behind}" + (f", others after {others}" if others > behind else "")
    waiting = Counter(phase_of(ring) for ring in stuck if ring not in odd).most_common(1)[0][0]
    why = f"in {phase} {position}; the others are in {waiting}"
    causes = {"data loading": DATA_LOADING, "training": HOST, "optimizer": HOST}
    return Odd(sorted(ring.rank for ring in odd), why, causes.get(phase, UNKNOWN))


class Frame(NamedTuple):
    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} {self.function}"


@dataclass(frozen=True)
class StackDump:
    """What a rank wrote about its threads when it had made no step for too long."""

    heading: str
    """When and why."""
    threads: tuple[tuple[Frame, ...], ...]
    """Innermost frame first. The main thread is the last."""

    @property
    def main(self) -> tuple[Frame, ...]:
        return self.threads[-1] if self.threads else ()


def read_stacks(run: Path) -> dict[int, StackDump]:
    """The last dump of each rank that wrote one."""
    last_dumps = {}
    for path in sorted((run / FOLDER).glob("stacks-rank-*.txt")):
        match = _STACKS.fullmatch(path.name) if path.is_file() else None
        dumps = parse_stacks(path.read_text(encoding="utf-8", errors="replace")) if match else []
        if match and dumps:
            last_dumps[int(match[1])] = dumps[-1]
    return last_dumps


def parse_stacks(text: str) -> list[StackDump]:
    """The dumps in a file of faulthandler's; each begins with a line of its own, which is not part of a stack."""
    dumps: list[tuple[str, list[list[Frame]]]] = []
    for line in text.splitlines():
        frame = _FRAME.fullmatch(line)
        if frame and dumps and dumps[-1][1]:
            dumps[-1][1][-1].append(Frame(frame["file"], frame["line"], frame["function"]))
        elif _THREAD.match(line):
            if not dumps:
                dumps.append(("", []))
            dumps[-1][1].append([])
        elif line.strip() and not line[0].isspace():
            dumps.append((line.strip(), []))
    return [StackDump(heading, tuple(map(tuple, threads))) for heading, threads in dumps if threads]


def group_by_stack(dumps: dict[int, StackDump]) -> list[tuple[list[int], tuple[Frame, ...]]]:
    """Ranks whose main threads have the same innermost frames, the largest group first."""
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for rank, dump in dumps.items():
        groups.setdefault(dump.main[:SHOWN_FRAMES], []).append(rank)
    return sorted(
        ((ranks, frames) for frames, ranks in groups.items()), key=lambda group: (-len(group[0]), group[0])
    )


def own_frame(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame outside installed packages, the standard library and our hooks."""
    installed = ("site-packages", "dist-packages", "/lib/python", "<frozen", "rankscope/inapp/")
    listed = list(frames)
    of_script = (frame for frame in listed if not any(word in frame.file for word in installed))
    return next(of_script, listed[0] if listed else None)
