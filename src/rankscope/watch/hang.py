"""A job that makes no step, or has failed: which rank is the cause, from the ring files; and what the ranks wrote.

The evidence of a hang (inapp.hang_evidence) is read here and judged in analysis.health.hang.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.capture.telemetry_ring import PHASES
from rankscope.inapp.hang_evidence import Frame
from rankscope.records import dataclass
from rankscope.units import shorten_middle
from rankscope.watch.alarms import DATA_LOADING, HANG, HOST, RANK_ENDED, UNKNOWN, Alarm, who
from rankscope.watch.rings import RankRing, rank_files

LOST_AFTER_S = 60.0
"""A rank that has not written for so long has ended without saying so, or its node has. Ranks write every second, and
the clocks of nodes may differ by seconds."""
_DEFAULT_HANG_S = 600.0
_LONGEST_MESSAGE = 160
_KILLED_AFTER_S = 5.0
"""Once a rank has failed: those that do not write for so long have been killed. Launchers do that."""
ENDED = PHASES.index("ended")
_WAITS = ("collective", "backward")
"""What ranks do that wait for others: with gloo, DDP waits inside backward."""
_RANK = re.compile(r"rank-(\d+)\.(?:txt|hang)$")
_CONSEQUENCE = re.compile(
    r"connection (?:closed|reset|was|lost)|connection.*refused|timed? ?out|broken pipe|nccl|recv|socket|tcpstore"
    r"|(?:remote|peer) .*(?:closed|exit)",
    re.IGNORECASE,
)
"""In the message of an exception that a rank raises because another one has gone."""
_THREAD = re.compile(r"(?:Current thread|Thread) 0x")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)')


def judged_at(rings: Sequence[RankRing], clock_unix_ns: int) -> int:
    """The time to judge by: now, or when the job was last alive."""
    last = max(ring.header.alive_unix_ns for ring in rings)
    return min(clock_unix_ns, last + int(LOST_AFTER_S * 1e9) // 2)


def is_over(rings: Sequence[RankRing], clock_unix_ns: int) -> bool:
    """Whether all ranks have ended, or none writes any more."""
    last = max(ring.header.alive_unix_ns for ring in rings)
    silent_after_s = _KILLED_AFTER_S if any(map(failure_of, rings)) else LOST_AFTER_S
    return all(ring.header.phase == ENDED for ring in rings) or clock_unix_ns - last > silent_after_s * 1e9


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
    first = _first_to_stop(stuck)
    odd = odd_ranks(first, at_unix_ns)
    last = min(ring.last_step for ring in first)
    seconds = max(without_step_s(ring, at_unix_ns) for ring in stuck)
    culprit = f"{who(odd.ranks)}: {odd.why}" if odd.ranks else odd.why
    if len(first) < len(stuck):
        culprit = f"{first[0].role or 'the role without a name'} stopped first; {culprit}"
    ranks = tuple(odd.ranks or sorted(ring.rank for ring in first))
    since_unix_ns = min(ring.last_end_unix_ns for ring in stuck)
    text = f"{len(stuck)} of {len(rings)} ranks have made no step for {seconds:.0f} s, since step {last}; {culprit}"
    hint = "The ranks write their stacks to the run folder: rankscope stats RUN -r hang"
    return [
        Alarm(HANG, odd.cause, ranks, "", last, last, since_unix_ns, seconds * 1e9, "ns", 1.0, text, hint)
    ]


def _first_to_stop(stuck: Sequence[RankRing]) -> list[RankRing]:
    """The ranks of the role whose last step ended first: the others have made theirs, and wait for it. Their steps have
    numbers of their own."""
    roles: dict[str, list[RankRing]] = {}
    for ring in stuck:
        roles.setdefault(ring.role, []).append(ring)
    return min(roles.values(), key=lambda ranks: max(ring.last_end_unix_ns for ring in ranks))


def failure_of(ring: RankRing) -> dict[str, Any]:
    """The exception that ended a rank: type, message, where, unix_ns; {} without one."""
    failure = ring.about.get("failure")
    if not isinstance(failure, dict) or not isinstance(failure.get("unix_ns"), int):
        return {}
    texts = {key: str(failure.get(key) or "") for key in ("type", "message", "where")}
    return {} if texts["type"] == "KeyboardInterrupt" else {**texts, "unix_ns": failure["unix_ns"]}


def failures(rings: Sequence[RankRing], at_unix_ns: int) -> list[Alarm]:
    """One alarm when ranks have failed; it names those that the others lost their connection to."""
    failed = sorted(
        (ring for ring in rings if failure_of(ring)), key=lambda ring: failure_of(ring)["unix_ns"]
    )
    if not failed:
        return []
    silent = [ring for ring in rings if ring.header.phase != ENDED and not ring.off]
    if silent and at_unix_ns - failure_of(failed[0])["unix_ns"] < _KILLED_AFTER_S * 1e9:
        return []  # others may follow
    causes = [ring for ring in failed if not _CONSEQUENCE.search(failure_of(ring)["message"])]
    culprits = causes or silent or failed
    first = culprits[0]
    failure = failure_of(culprits[0]) or failure_of(failed[0])
    what = f"{failure['type']}: {shorten_middle(failure['message'], _LONGEST_MESSAGE)}"
    ranks = tuple(sorted(ring.rank for ring in culprits))
    others = len(failed) - len({*ranks} & {ring.rank for ring in failed})
    # A rank that was killed has not written its last steps.
    step = first.last_step if failure_of(first) else min(ring.last_step for ring in failed)
    if failure_of(first):
        text = f"{who(ranks)} failed after step {step} with {what}"
        text += f", at {failure['where']}" * bool(failure["where"]) + f"; {others} more after it" * bool(
            others
        )
        hint = "Its traceback is in the job's log."
    else:
        text = f"{who(ranks)} ended without a word after step {step}; {others} others then failed: {what}"
        hint = "It was killed, or crashed in C: look for its exit code in the launcher's log, for OOM and Xid in dmesg."
    moment = failure["unix_ns"]
    return [Alarm(RANK_ENDED, UNKNOWN, ranks, "", step, step, moment, 0.0, "ns", 1.0, text, hint)]


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


@dataclass(frozen=True)
class StackDump:
    """What a rank wrote about its threads when it had made no step for too long."""

    heading: str
    """When and why."""
    threads: tuple[tuple[Frame, ...], ...]
    """Innermost frame first. The main thread is the last."""

    @property
    def main(self) -> tuple[Frame, ...]:
        """Without our own hooks."""
        frames = self.threads[-1] if self.threads else ()
        return tuple(frame for frame in frames if "rankscope/inapp/" not in frame.file)


def read_stacks(run: Path) -> dict[int, StackDump]:
    """The last dump of each rank that wrote one."""
    last_dumps = {}
    for _, rank, text in _texts(run, "stacks-rank-*.txt"):
        if dumps := parse_stacks(text):
            last_dumps[rank] = dumps[-1]
    return last_dumps


def read_processes(run: Path) -> dict[int, dict[str, Any]]:
    """What each rank wrote last about processes and logs (inapp.hang_evidence); a damaged file counts as none."""
    contents = {}
    for first, rank, text in _texts(run, "rank-*.hang"):
        with suppress(ValueError, AttributeError, KeyError, TypeError):
            content = json.loads(text)
            log = content.get("log") or {}
            contents[rank] = {
                "unix_ns": int(content["unix_ns"]),
                "children": [dict(child) for child in content.get("children", ())],
                "ranks": {
                    first + int(other): dict(process) for other, process in content.get("ranks", {}).items()
                },
                "log": (str(log.get("path")), [*map(str, log.get("lines", ()))]),
                "kernel": [*map(str, content.get("kernel", ()))],
            }
    return contents


def _texts(run: Path, pattern: str) -> Iterator[tuple[int, int, str]]:
    """The first rank of the folder, the rank, and what its file says."""
    for folder, path in rank_files(run, pattern):
        if match := _RANK.search(path.name):
            yield folder.first, folder.first + int(match[1]), path.read_text("utf-8", errors="replace")


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
    """Ranks whose main threads have the same frames, the largest group first."""
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for rank, dump in dumps.items():
        groups.setdefault(dump.main, []).append(rank)
    return sorted(
        ((ranks, frames) for frames, ranks in groups.items()), key=lambda group: (-len(group[0]), group[0])
    )
