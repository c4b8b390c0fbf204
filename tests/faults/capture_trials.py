"""Faults of a captured job: whatever happens to it, its outcome is that of the same job alone.

Compared are the exit status, stdout, stderr without our lines, and the files that the job wrote.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

from faults.outcome import Outcome, Part
from integration.jobs import environment, manifests
from integration.nsight import NSYS

JOB = str(Path(__file__).with_name("capture_job.py"))
PYTHON = sys.executable
PROFILE = (PYTHON, "-m", "rankscope", "profile")
# They wait half of the time: one more than the cores of the smallest machine.
AT_ONCE = 3
TIMEOUT_S = 180
# What people and schedulers send most.
USUAL = ("INT", "TERM", "HUP", "USR1", "USR2", "QUIT", "ALRM")
OTHERS = ("XCPU", "PWR", "IO", "VTALRM", "PROF", "STKFLT", "TRAP", "SYS", "SEGV", "ABRT", "BUS", "FPE", "ILL")
REAL_TIME = ("RTMIN", "RTMIN+1", "RTMIN+9", "RTMAX-1", "RTMAX")
# Python handles faults only where they are faults of its own.
HANDLED = (*USUAL, *OTHERS[:6], *REAL_TIME, "WINCH", "URG", "PIPE", "XFSZ")
# They end a job that does not handle them.
RELAYED = (*USUAL, *OTHERS, *REAL_TIME)
DEADLY = (*RELAYED, "KILL")
# With torch, of which an import takes seconds.
USUAL_DEADLY = (*USUAL, "KILL", "SEGV", "ABRT", "BUS")
# torch's profiler prints these two itself; what turns them off hides Kineto's errors too.
_KINETO = re.compile(r"^USDT:.*SyncActivityProfilerHandler.*\n?", re.MULTILINE)
_OURS = re.compile(r"^rankscope: .*\n?(?:^  .*\n?)*", re.MULTILINE)


@dataclass(frozen=True)
class Signal:
    """Sent once the job runs, after ``delay_s``."""

    name: str
    target: str
    """front, group or rank."""
    delay_s: float


@dataclass(frozen=True)
class Trial:
    """One job, and what is done to it."""

    kind: str
    words: tuple[str, ...] = ()
    """Of capture_job.py."""
    launcher: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Of rankscope profile."""
    signals: tuple[Signal, ...] = ()
    closed: tuple[int, ...] = ()
    """Streams that are closed."""
    disk: str = ""
    """The run folder's: full, readonly, stuck, or "stuck ring": the file of the telemetry hangs."""
    file_limit: int | None = None
    """The largest file that the job may write, in blocks of 512 bytes."""
    lines: str = "all"
    """What of the output is compared: all, or the job's own lines (a launcher's have times in them)."""
    note: str = ""
    """Words that the rank's manifest must have."""

    @property
    def what(self) -> str:
        parts = [
            *self.words,
            *self.options,
            *(f"{one.name} after {one.delay_s:.3f} s" for one in self.signals),
        ]
        return " ".join(word if len(word) < 40 else f"{word[:20]}..." for word in parts)[:300]


@dataclass(frozen=True)
class JobOutcome:
    status: int
    out: str
    err: str
    files: tuple[tuple[str, str], ...]


Kinds = Sequence[Callable[[Random], Trial]]


def trials_of(kinds: Kinds) -> Callable[[int, Random], Iterator[Outcome]]:
    """So many trials, the kinds in turn."""

    def trials(count: int, random: Random) -> Iterator[Outcome]:
        planned = [kinds[number % len(kinds)](random) for number in range(count)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(tried, planned)

    return trials


def tried(trial: Trial) -> Outcome:
    if trial.disk in ("full", "readonly") and os.geteuid() != 0:
        return Outcome(trial.kind, f"{trial.what}: skipped, only root can mount a small disk")
    if "--nsys" in trial.options and not NSYS.exists():
        return Outcome(trial.kind, f"{trial.what}: skipped, {NSYS} is not installed")
    try:
        alone = _alone(_without_moments(trial))
        captured, noted = _run(trial, captured=True)
    except subprocess.TimeoutExpired:
        return Outcome(trial.kind, trial.what, "it did not end")
    found = [
        f"{name} was {_shown(getattr(alone, name))} alone, is {_shown(getattr(captured, name))}"
        for name in ("status", "out", "err", "files")
        if getattr(alone, name) != getattr(captured, name)
    ]
    if trial.note and trial.note not in noted:
        found.append(f"'{trial.note}' is not in {noted!r}")
    return Outcome(trial.kind, trial.what, "; ".join(found))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 2000 else f"{text[:1000]} ... {text[-1000:]}"


def _without_moments(trial: Trial) -> Trial:
    """The job's outcome alone is the same for every moment: it is found once."""
    signals = tuple(replace(one, delay_s=0.05) for one in trial.signals)
    if trial.note:  # SIGKILL to the front: the job goes on as if nothing had happened
        signals = tuple(one for one in signals if one.target != "front")
    if trial.options:  # --on-signal: without us nobody sends the signal
        signals = tuple(one for one in signals if one.name not in trial.options)
    return replace(trial, kind="", signals=signals, options=(), disk="")


@cache
def _alone(trial: Trial) -> JobOutcome:
    return _run(trial, captured=False)[0]


def _run(trial: Trial, *, captured: bool) -> tuple[JobOutcome, str]:
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankscope-trial-")))
        cwd, run = top / "work", top / "disk" / "run"
        cwd.mkdir()
        (top / "disk").mkdir()
        stack.enter_context(_disk(trial.disk, top / "disk", run))
        folder = ["--folder", str(run)] if "vanish" in trial.words else []
        words = [*trial.launcher, PYTHON, JOB, *folder, *trial.words]
        if captured:
            words = [*PROFILE, "-o", str(run), *trial.options, *words]
        job = subprocess.Popen(
            ["sh", "-c", _preparation(trial), "sh", *words],
            cwd=cwd,
            env=environment(PYTHONHASHSEED="0"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            for one in trial.signals:
                _send(one, job, cwd)
            out, err = job.communicate(
                timeout=TIMEOUT_S
            )  # to the end of the job, also when the front was killed
        finally:
            _end_group(job)
        noted = str([one["notes"] for one in manifests(run).values()]) if trial.note and captured else ""
        status = 0 if noted else job.returncode  # of a front that was killed: the job's own is not known
        texts = (text.decode(errors="replace").replace(str(top), "TOP") for text in (out, err))
        return JobOutcome(status, *_compared(trial, *texts), _files(cwd)), noted


def _preparation(trial: Trial) -> str:
    """Shell commands that become the job."""
    limit = f"ulimit -f {trial.file_limit}; " if trial.file_limit is not None else ""
    closed = "".join(f" {number}>&-" for number in trial.closed)
    return f'ulimit -c 0; {limit}exec "$@"{closed}'


@contextmanager
def _disk(kind: str, folder: Path, run: Path) -> Iterator[None]:
    if kind == "stuck":
        run.mkdir()
        os.mkfifo(run / ".rank-00000.pt.trace.json.gz.part")
    if kind == "stuck ring":
        (run / "telemetry").mkdir(parents=True)
        os.mkfifo(run / "telemetry/rank-00000.ring")
    if kind not in ("full", "readonly"):
        yield
        return
    options = "size=16k" if kind == "full" else "size=1m,ro"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _send(one: Signal, job: subprocess.Popen[bytes], cwd: Path) -> None:
    if not _wait_for(cwd / "pid", job):
        return
    time.sleep(one.delay_s)
    number = _number(one.name)
    try:
        if one.target == "group":
            os.killpg(job.pid, number)
        else:
            os.kill(job.pid if one.target == "front" else int((cwd / "pid").read_text()), number)
    except ProcessLookupError:
        pass  # it has ended: what is compared shows whether that is right


def _number(name: str) -> int:
    """Of TERM, RTMIN+3 and the like."""
    parts = re.fullmatch(r"(\w+)([+-]\d+)?", name)
    assert parts is not None
    return signal.Signals[f"SIG{parts[1]}"] + int(parts[2] or 0)


def _wait_for(path: Path, job: subprocess.Popen[bytes]) -> bool:
    while not path.exists():
        if job.poll() is not None:
            return False
        time.sleep(0.005)
    return True


def _end_group(job: subprocess.Popen[bytes]) -> None:
    """What a failed trial has left; a good one has left nothing."""
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        job.communicate()


def _compared(trial: Trial, out: str, err: str) -> tuple[str, str]:
    if trial.lines == "job":
        own = ("up,", "the job's", "done", "{")
        return "".join(sorted(line for line in out.splitlines(True) if line.startswith(own))), ""
    return out, _OURS.sub("", _KINETO.sub("", err))


def _files(cwd: Path) -> tuple[tuple[str, str], ...]:
    paths = (path for path in sorted(cwd.rglob("*")) if path.is_file() and not path.name.startswith("pid"))
    return tuple((str(path.relative_to(cwd)), path.read_text(errors="replace")) for path in paths)


def _signalled(
    kind: str, words: Sequence[str], names: Sequence[str], target: str, most_s: float
) -> Callable[[Random], Trial]:
    def make(random: Random) -> Trial:
        name = random.choice(names)
        return Trial(kind, tuple(words), signals=(Signal(name, target, random.uniform(0, most_s)),))

    return make


ODD = (
    "fork,wait",
    "closerange,fork,sigchld",
    "environment,loader",
    "sigchld,wait,closerange,chdir",
    "stderr,closerange",
    "wait,environment,fork",
)


def _odd(random: Random) -> Trial:
    words = ("--torch", "--odd", random.choice(ODD), "--end", random.choice(("0", "_exit:9")))
    return Trial("scripts that close, fork, wait, look around", words)


def _vanished(random: Random) -> Trial:
    words = ("--torch", "--odd", "vanish", "--end", random.choice(("0", "7")))
    return Trial("the run folder vanishes", words)


def _an_end(random: Random) -> str:
    return random.choice(("7", "_exit:9", "TERM", "KILL", "SEGV", "raise"))


def _ends(random: Random) -> Trial:
    return Trial("a rank that dies after its window", ("--torch", "--end", _an_end(random)))


def _closed_streams(random: Random) -> Trial:
    closed = random.choice(((2,), (1,), (0,), (1, 2), (0, 1, 2)))
    words = ("--torch",) if random.random() < 0.2 else ()
    return Trial(
        "closed streams (2>&- and so on)", (*words, "--end", random.choice(("0", "3"))), closed=closed
    )


def _huge(random: Random) -> Trial:
    size = random.choice((130, 200, 600, 1500))  # kB; the kernel takes about 2 MB
    words = tuple("x" * 999 for _ in range(size))
    return Trial(
        "a command line of 130 kB to 1.5 MB", (*(("--torch",) if random.random() < 0.2 else ()), "--", *words)
    )


def _full_disk(random: Random) -> Trial:
    words = ("--torch", *(("--handle",) if random.random() < 0.5 else ()), "--end", random.choice(("0", "5")))
    signals = (Signal("TERM", "front", random.uniform(0, 4)),) if "--handle" in words else ()
    return Trial(
        "the disk of the run folder is full", words, options=("--with-stack",), disk="full", signals=signals
    )


def _quota(random: Random) -> Trial:
    limit = random.choice((0, 1, 2, 4))
    return Trial("file size limit (quota)", ("--torch", "--end", random.choice(("0", "5"))), file_limit=limit)


def _read_only(random: Random) -> Trial:
    words = ("--torch",) if random.random() < 0.3 else ()
    return Trial(
        "a read-only run folder", (*words, "--end", random.choice(("0", "5", "HUP"))), disk="readonly"
    )


def _stuck(random: Random) -> Trial:
    return Trial("an output that hangs", ("--torch", "--end", random.choice(("0", "5"))), disk="stuck")


def _front_killed(random: Random) -> Trial:
    words = ("--torch", "--handle") if random.random() < 0.5 else ("--torch",)
    killed = Signal("KILL", "front", random.uniform(0, 0.5))
    usr1 = (Signal("USR1", "rank", random.uniform(0, 2)),) if "--handle" in words else ()
    note = "was killed before the job ended"
    return Trial("SIGKILL to the front: the job goes on", words, signals=(killed, *usr1), note=note)


def _on_signal(random: Random) -> Trial:
    requests = tuple(
        Signal("USR2", random.choice(("front", "rank")), random.uniform(0.2, 1))
        for _ in range(random.randint(1, 3))
    )
    last = Signal("TERM", random.choice(("front", "group", "rank")), random.uniform(0, 1))
    return Trial(
        "--on-signal, then SIGTERM",
        ("--torch", "--deadly"),
        options=("--on-signal", "USR2"),
        signals=(*requests, last),
    )


def _torchrun(random: Random) -> Trial:
    end = random.choice(("7@1", "_exit:9@1", "KILL@0", "SEGV@1", "0"))
    launcher = ("torchrun", "--standalone", "--nproc-per-node", "2", "--no-python")
    return Trial("torchrun, a rank dies", ("--torch", "--end", end), launcher=launcher, lines="job")


def _mpiexec(random: Random) -> Trial:
    end = random.choice(("7@1", "_exit:9@1", "KILL@0", "SEGV@1", "0"))
    return Trial("mpiexec, a rank dies", ("--end", end), launcher=("mpiexec", "-n", "2"), lines="job")


def _nsys(random: Random) -> Trial:
    name, target = random.choice(USUAL), random.choice(("front", "group", "rank"))
    signals = (Signal(name, target, random.uniform(0, 1)),)
    return Trial(
        "--tool nsys, a handled signal",
        ("--handle", "--end", "5"),
        options=("--tool", "nsys", "--nsys", str(NSYS)),
        signals=signals,
    )


def _stopped(random: Random) -> Trial:
    name, target = random.choice((("STOP", "group"), ("TSTP", "group"), ("TSTP", "front")))
    stop = Signal(name, target, random.uniform(0, 1))
    go = Signal("CONT", "group", random.uniform(0.05, 0.3))
    end = Signal("TERM", random.choice(("front", "group")), random.uniform(0, 0.5))
    return Trial("stopped and continued (Ctrl-Z, fg), then SIGTERM", ("--handle",), signals=(stop, go, end))


_HANDLE, _DIE = ("--handle", "--end", "5"), ("--deadly",)
_TO_GROUP = _signalled("a handled signal to the group", _HANDLE, HANDLED, "group", 1)
_TO_FRONT = _signalled("a handled signal to the front", _HANDLE, HANDLED, "front", 1)
_TO_RANK = _signalled("a handled signal to the rank", _HANDLE, HANDLED, "rank", 1)
_KILLS_GROUP = _signalled("a deadly signal to the group", _DIE, DEADLY, "group", 1)
_KILLS_FRONT = _signalled("a deadly signal to the front", _DIE, RELAYED, "front", 1)
_KILLS_RANK = _signalled("a deadly signal to the rank", _DIE, DEADLY, "rank", 1)
_OTHER_GROUP = "a job with its own process group (setpgid, timeout)"


def _other_group(random: Random) -> Trial:
    """Ctrl-C and a scheduler's `kill -- -PGID` reach it; SIGKILL to the group cannot."""
    words, names = random.choice(((_HANDLE, HANDLED), (_DIE, RELAYED)))
    sent = Signal(random.choice(names), random.choice(("group", "front")), random.uniform(0, 1))
    return Trial(_OTHER_GROUP, ("--group", *words), signals=(sent,))


def _behind_timeout(random: Random) -> Trial:
    """timeout passes on what it handles itself, once more to its group: the job ends by the first."""
    sent = Signal(
        random.choice(("INT", "TERM", "HUP")), random.choice(("group", "front")), random.uniform(0, 1)
    )
    return Trial(_OTHER_GROUP, _DIE, launcher=("timeout", "60"), signals=(sent,))


# In turn. Importing torch takes seconds: the kinds that need it come once, the first eight are the short form.
KINDS: Kinds = (
    _TO_GROUP,
    _TO_FRONT,
    _odd,
    _other_group,
    _KILLS_GROUP,
    _closed_streams,
    _huge,
    _read_only,
    _signalled("a handled signal to the group, torch", ("--torch", *_HANDLE), USUAL, "group", 4),
    _KILLS_RANK,
    _TO_RANK,
    _behind_timeout,
    _stopped,
    _ends,
    _TO_GROUP,
    _KILLS_FRONT,
    _signalled("a handled signal to the front, torch", ("--torch", *_HANDLE), USUAL, "front", 4),
    _mpiexec,
    _full_disk,
    _TO_FRONT,
    _signalled(
        "a deadly signal to the rank, torch",
        ("--torch", *_DIE),
        USUAL_DEADLY,
        "rank",
        4,
    ),
    _KILLS_GROUP,
    _vanished,
    _stopped,
    _other_group,
    _front_killed,
    _TO_GROUP,
    _on_signal,
    _KILLS_RANK,
    _signalled(
        "a deadly signal to the group, torch",
        ("--torch", *_DIE),
        USUAL_DEADLY,
        "group",
        4,
    ),
    _TO_RANK,
    _quota,
    _closed_streams,
    _nsys,
    _KILLS_FRONT,
    _signalled("a deadly signal to the front, torch", ("--torch", *_DIE), USUAL, "front", 4),
    _TO_FRONT,
    _torchrun,
    _TO_GROUP,
    _stuck,
    _odd,
)

PART = Part("capture", trials_of(KINDS), many=300, few=5)
