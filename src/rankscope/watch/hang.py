"""A job that makes no step, or has failed: which ranks the others wait for, and why.

There is one verdict, from whatever evidence there is: the ring files, stacks and states of processes that the ranks
wrote (inapp.hang_evidence), and what `analysis.health` finds in torch's flight recorder or at the end of a trace.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from rankscope.inapp.hang_evidence import Frame, own_frame
from rankscope.records import dataclass
from rankscope.text.run_words import shell_word
from rankscope.units import shorten_middle
from rankscope.watch.alarms import DATA_LOADING, HANG, HOST, RANK_ENDED, UNKNOWN, Alarm, who
from rankscope.watch.rings import LOST_AFTER_S, RankRing, rank_files

_DEFAULT_HANG_S = 600.0
_LONGEST_MESSAGE = 160
_KILLED_AFTER_S = 5.0
"""Once a rank has failed: those that do not write for so long have been killed. Launchers do that."""
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
_CAUSES = {"data loading": DATA_LOADING, "training": HOST, "optimizer": HOST}
"""By the phase of a rank that the others wait for."""
_LOOK = "Look at what its main thread does (column stack), and at its log."
_KILLED = (
    "It was killed, or crashed in C: look for its exit code in the launcher's log, for OOM and Xid in dmesg."
)
_STATES = {
    "gone": ("has ended", _KILLED),
    "Z": ("has ended", _KILLED),
    "T": (
        "is stopped",
        "Something sent it SIGSTOP: a scheduler that suspends the job, or a terminal. kill -CONT lets it go on.",
    ),
    "t": ("is stopped by a debugger", _LOOK),
}
"""Of a process that does not run any more: what is said of it, and what to do."""


def judged_at(rings: Sequence[RankRing], clock_unix_ns: int) -> int:
    """The time to judge by: now, or when the job was last alive."""
    last = max(ring.header.alive_unix_ns for ring in rings)
    return min(clock_unix_ns, last + int(LOST_AFTER_S * 1e9) // 2)


def is_over(rings: Sequence[RankRing], clock_unix_ns: int) -> bool:
    """Whether all ranks have ended, or none writes any more."""
    last = max(ring.header.alive_unix_ns for ring in rings)
    silent_after_s = _KILLED_AFTER_S if any(ring.failure for ring in rings) else LOST_AFTER_S
    return all(ring.has_ended for ring in rings) or clock_unix_ns - last > silent_after_s * 1e9


def failures(rings: Sequence[RankRing], at_unix_ns: int) -> list[Alarm]:
    """One alarm when ranks have failed; it names those that the others lost their connection to."""
    failed = sorted((ring for ring in rings if ring.failure), key=lambda ring: ring.failure["unix_ns"])
    if not failed:
        return []
    silent = [ring for ring in rings if not ring.has_ended and not ring.off]
    if silent and at_unix_ns - failed[0].failure["unix_ns"] < _KILLED_AFTER_S * 1e9:
        return []  # others may follow
    causes = [ring for ring in failed if not _CONSEQUENCE.search(ring.failure["message"])]
    culprits = causes or silent or failed
    first = culprits[0]
    failure = first.failure or failed[0].failure
    what = f"{failure['type']}: {shorten_middle(failure['message'], _LONGEST_MESSAGE)}"
    ranks = tuple(sorted(ring.rank for ring in culprits))
    others = len(failed) - len({*ranks} & {ring.rank for ring in failed})
    # A rank that was killed has not written its last steps.
    step = first.last_step if first.failure else min(ring.last_step for ring in failed)
    if first.failure:
        text = f"{who(ranks)} failed after step {step} with {what}"
        text += f", at {failure['where']}" * bool(failure["where"])
        text += f"; {others} more after it" * bool(others)
        hint = "Its traceback is in the job's log."
    else:
        text = f"{who(ranks)} ended without a word after step {step}; {others} others then failed: {what}"
        hint = _KILLED
    moment = failure["unix_ns"]
    return [Alarm(RANK_ENDED, UNKNOWN, ranks, "", step, step, moment, 0.0, "ns", 1.0, text, hint)]


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


@dataclass(frozen=True)
class Verdict:
    """Who holds up a job."""

    ranks: tuple[int, ...]
    """None: no rank stands out."""
    why: str
    advice: str = _LOOK
    cause: str = UNKNOWN
    in_circle: bool = False
    """The ranks wait for each other."""
    in_program: bool = False
    """What the program does there is not known, unless stacks tell."""

    def title(self, after: str = "", at: str = "", waiting: str = "") -> str:
        """`after` which step, `at` which line, and who is `waiting`; each may be empty."""
        if not self.ranks:
            return f"No rank stands out{after}: {self.why}"
        does = "wait for each other" if self.in_circle else f"hold{'s' * (len(self.ranks) == 1)} up the job"
        return f"{who(self.ranks).capitalize()} {does}{after}: {self.why}{at}" + f"; {waiting}" * bool(
            waiting
        )


Groups = list[tuple[list[int], tuple[Frame, ...]]]
"""Ranks whose main threads have the same frames."""


@dataclass(frozen=True)
class Evidence:
    """All that is known of a hang."""

    rings: dict[int, RankRing]
    at_unix_ns: int
    stuck: list[RankRing]
    """Ranks that make no step."""
    dumps: dict[int, StackDump] = field(default_factory=dict)
    processes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What each rank wrote about its workers, the ranks of its host, and logs."""
    recorded: Verdict | None = None
    """That of torch's flight recorders, where it names ranks."""
    gone_on: list[int] = field(default_factory=list)
    """Ranks that have made a step since they wrote their stacks."""

    @property
    def groups(self) -> Groups:
        """By their stacks, the largest group first."""
        groups: dict[tuple[Frame, ...], list[int]] = {}
        for rank, dump in self.dumps.items():
            groups.setdefault(dump.main, []).append(rank)
        return sorted(
            ((ranks, frames) for frames, ranks in groups.items()),
            key=lambda group: (-len(group[0]), group[0]),
        )

    def process_of(self, rank: int) -> dict[str, Any]:
        """The process of a rank that no longer writes, as another rank of its host saw it; {} of other ranks."""
        seen = [content["ranks"].get(rank) for content in self.processes.values()]
        return next((process for process in seen if process and process.get("stale")), {})

    def verdict(self) -> Verdict:
        """A process that is gone or stopped explains everything; the flight recorder knows who did not join; else the
        step and the phase tell; else the smallest group of stacks does."""
        unfinished = [rank for rank, ring in self.rings.items() if not ring.has_ended]
        states = {rank: self.process_of(rank).get("state", "") for rank in unfinished}
        if broken := tuple(rank for rank, state in states.items() if state in _STATES):
            state, advice = _STATES[states[broken[0]]]
            return Verdict(broken, f"its process {state}", advice)
        if early := tuple(rank for rank, ring in self.rings.items() if self._finished_early(ring)):
            advice = "All ranks must make the same number of steps: look at how long their data is, and at early stops."
            return Verdict(early, "has ended its training, and the others have not", advice)
        verdict, groups = self.recorded or self.telemetry(), self.groups
        if verdict.in_program and verdict.ranks:
            verdict = Verdict(verdict.ranks, verdict.why, in_circle=verdict.in_circle)
        elif not verdict.ranks and len(groups) > 1 and len(groups[-1][0]) < len(groups[-2][0]):
            verdict = Verdict(tuple(groups[-1][0]), "it is alone there")
        if len(verdict.ranks) == 1:
            return self._stuck_worker(*verdict.ranks) or self._keeps_lock(*verdict.ranks) or verdict
        return verdict

    @property
    def first(self) -> list[RankRing]:
        """The stuck ranks of the role whose last step ended first: the others have made theirs, and wait for it. Their
        steps have numbers of their own."""
        roles: dict[str, list[RankRing]] = {}
        for ring in self.stuck:
            roles.setdefault(ring.role, []).append(ring)
        return min(roles.values(), key=lambda ranks: max(ring.last_end_unix_ns for ring in ranks), default=[])

    def telemetry(self) -> Verdict:
        """By the ring files alone."""
        verdict = _odd_ranks(self.first, self.at_unix_ns)
        if len(self.first) < len(self.stuck):
            ranks = verdict.ranks or tuple(sorted(ring.rank for ring in self.first))
            why = f"{self.first[0].role or 'the role without a name'} stopped first; {verdict.why}"
            return Verdict(ranks, why, cause=verdict.cause)
        return verdict

    def title(self, verdict: Verdict) -> str:
        """Who is missing, what it does and where, and where the others wait."""
        # A rank that does not write any more has not written its last steps either.
        steps = [ring.last_step for ring in self.first if not self.process_of(ring.rank)]
        stacks = [self.dumps[rank].main for rank in verdict.ranks if rank in self.dumps]
        lines = [*dict.fromkeys(str(own_frame(frames)) for frames in stacks if frames)][:2]
        others = [group for group in self.groups if not {*group[0]} & {*verdict.ranks}]
        waiting = ""
        if verdict.ranks and others:
            ranks, frames = others[0]
            waiting = f"{who(ranks)} wait{'s' * (len(ranks) == 1)} at {own_frame(frames)}"
        after = f" after step {min(steps)}" if steps else ""
        return verdict.title(after, f", at {' and '.join(lines)}" * bool(lines), waiting)

    def _finished_early(self, ring: RankRing) -> bool:
        """Whether a rank ended while ranks of its role go on. One that was part of the hang, and was ended, has
        stacks."""
        is_peer = ring.role in {other.role for other in self.stuck}
        return is_peer and ring.has_ended and not (ring.off or ring.failure or ring.rank in self.dumps)

    def _stuck_worker(self, rank: int) -> Verdict | None:
        """It waits for a DataLoader, whose worker is stopped, or stuck at a line of the dataset."""
        if rank not in self.rings or self.rings[rank].phase != "data loading":
            return None
        for worker in self.processes[rank]["children"] if rank in self.processes else ():
            who_waits = f"waits for its data loader, whose worker (process {worker.get('pid')})"
            if state := _STATES.get(str(worker.get("state"))):
                return Verdict((rank,), f"{who_waits} {state[0]}", cause=DATA_LOADING)
            stack = parse_stacks(str(worker.get("stack", "")))
            line = own_frame(stack[0].main) if stack else None
            if line is not None and "torch/utils/data" not in line.file:
                advice = "Look at what the dataset does there: files, locks, network."
                return Verdict((rank,), f"{who_waits} is at {line}", advice, DATA_LOADING)
        advice = "Look at what the dataset reads: files, locks, network; and at its workers."
        return Verdict((rank,), "waits for its data loader", advice, DATA_LOADING)

    def _keeps_lock(self, rank: int) -> Verdict | None:
        """No thread of it runs, but its process does."""
        process = self.process_of(rank)
        if process.get("state") == "D":
            why = f"its process waits in the kernel ({process.get('waits_in') or 'unknown function'})"
            advice = "A file system or a device does not answer: look at the kernel's log of its node."
            return Verdict((rank,), why, advice)
        if process.get("state") in ("R", "S"):
            advice = "Look at what is called there: a regular expression, an extension."
            return Verdict((rank,), "in C code that keeps Python's lock", advice)
        return None


def _odd_ranks(stuck: Sequence[RankRing], at_unix_ns: int) -> Verdict:
    """Those that no longer write, else those that are behind, else those that do not wait while the others do."""
    lost = tuple(sorted(ring.rank for ring in stuck if ring.is_lost(at_unix_ns)))
    if lost and len(lost) < len(stuck):
        return Verdict(lost, "no longer writes; its process or node has ended or is stopped")
    behind, others = (pick((ring.last_step for ring in stuck), default=0) for pick in (min, max))
    odd = [ring for ring in stuck if ring.last_step == behind]
    if len(odd) == len(stuck):
        odd = [ring for ring in stuck if ring.phase not in _WAITS]
    if not odd or len(odd) == len(stuck):
        return Verdict((), "all are at the same place", "Check the network and the devices.")
    phase, waiting = (
        Counter(ring.phase for ring in stuck if (ring in odd) == is_odd).most_common(1)[0][0]
        for is_odd in (True, False)
    )
    why = f"in {phase}; the others are in {waiting}" + f" after step {others}" * (others > behind)
    return Verdict(tuple(sorted(ring.rank for ring in odd)), why, cause=_CAUSES.get(phase, UNKNOWN))


def stuck_ranks(
    rings: Sequence[RankRing], at_unix_ns: int, hang_after_s: float | None = None
) -> list[RankRing]:
    """Ranks that have not ended and make no step, when one of them has made none for too long: as the job says, or for
    `hang_after_s`."""
    training = [ring for ring in rings if not ring.has_ended and ring.header.records]
    limits = [float(ring.about.get("hang_after_s") or _DEFAULT_HANG_S) for ring in training]
    limit = hang_after_s or min(limits, default=_DEFAULT_HANG_S)
    times = [ring.without_step_s(at_unix_ns) for ring in training]
    # They stop one after another, and all of them are to be compared.
    return [
        ring for ring, time in zip(training, times, strict=True) if max(times) > limit and time > limit / 2
    ]


Explain = Callable[[Path, Evidence], Evidence | None]
"""Adds what the ranks of a run wrote about a hang; None while they write."""


def hangs(
    rings: Sequence[RankRing],
    at_unix_ns: int,
    hang_after_s: float | None = None,
    run: Path = Path("RUN"),
    explain: Explain = lambda run, evidence: evidence,
) -> list[Alarm]:
    """One alarm when ranks are stuck; it names those that the others wait for."""
    stuck = stuck_ranks(rings, at_unix_ns, hang_after_s)
    evidence = (
        explain(run, Evidence({ring.rank: ring for ring in rings}, at_unix_ns, stuck)) if stuck else None
    )
    if evidence is None:
        return []
    verdict, seconds = evidence.verdict(), max(ring.without_step_s(at_unix_ns) for ring in stuck)
    title, last = evidence.title(verdict), min(ring.last_step for ring in evidence.first)
    what = f"{len(stuck)} of {len(rings)} ranks have made no step for {seconds:.0f} s; {title[0].lower()}{title[1:]}"
    hint = f"{verdict.advice} Details: rankscope stats {shell_word(run)} -r hang"
    ranks = verdict.ranks or tuple(sorted(ring.rank for ring in evidence.first))
    began, lost_ns = min(ring.last_end_unix_ns for ring in stuck), seconds * 1e9
    return [Alarm(HANG, verdict.cause, ranks, "", last, last, began, lost_ns, "ns", 1.0, what, hint)]


def read_stacks(run: Path) -> dict[int, StackDump]:
    """The last dump of each rank that wrote one."""
    dumps = {rank: parse_stacks(text) for _, rank, text in _texts(run, "stacks-rank-*.txt")}
    return {rank: of_rank[-1] for rank, of_rank in dumps.items() if of_rank}


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
