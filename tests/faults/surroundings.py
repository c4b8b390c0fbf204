"""Every command in surroundings that something is wrong with: an answer, or three lines and status 1.

Users that are not root cannot be other users; there the kinds that need it are left out.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from random import Random

from conftest import kernel_event, slice_event, write_kineto
from faults.forked import Child, Ended, load_commands
from faults.outcome import Outcome, Part

RUN, OUT = "RUN", "OUT"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("profile", "-o", OUT, "--", "true"),
    ("job", "slurm", "--nodes", "1", "-o", OUT, "--", "python", "train.py"),
    ("job", "pbs", "--nodes", "1", "-o", OUT, "--", "python", "train.py"),
    ("watch", RUN, "--once"),
    ("capture", RUN),
    ("profile", "--tool", "ncu", "--from", RUN),
    ("ingest", RUN),
    ("stats", RUN),
    ("stats", RUN, "-r", "kernels", "--format", "json"),
    ("whatif", RUN),
    ("diff", RUN, RUN),
    ("doctor", RUN),
    ("view", RUN, "--no-open", "--port", "0"),
    ("fetch", f"localhost:{RUN}", "--ssh", "false", "-o", OUT),
    ("report", RUN, "-f", "-o", OUT),
    ("report", RUN, "--chart", "breakdown", "-o", f"{OUT}.svg"),
    ("query", RUN, "SELECT name FROM slices"),
    ("mcp", RUN),
    ("mcp", "--guide"),
    ("export", RUN, "-t", "chrome", "-f", "-o", f"{OUT}.json"),
    ("export", "--scrub", f"{RUN}/report.sqlite"),
    ("bench", "synthetic", "-o", OUT, "--ranks", "1", "--events", "3000"),
)
NOBODY, UNLISTED = 65534, 54321
_CAPABILITY_VERSION, _KEEP_CAPABILITIES, _READ_EVERYTHING = 0x20080522, 8, 1 << 1
"""From linux/capability.h and linux/prctl.h; the last is CAP_DAC_OVERRIDE."""
_NAMES_OF_USERS = ("LOGNAME", "USER", "LNAME", "USERNAME")
_SERVED_SECONDS = 2.0
"""After which a viewer that has started is ended, as by Ctrl-C."""


def _keep_capabilities(kept: int) -> None:
    """Of root's capabilities, these bits. All but root's own files are then as for any user; the interpreter, which
    may be in root's home, can still be loaded."""
    header, words = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)(kept, kept)
    if ctypes.CDLL(None, use_errno=True).capset(header, words):
        raise OSError(ctypes.get_errno(), "capset")


def _unreadable(run: Path, random: Random) -> Path:
    os.chown(run, NOBODY, NOBODY)
    run.chmod(0o700)
    _keep_capabilities(0)
    return run


def _unreadable_file(run: Path, random: Random) -> Path:
    for path in run.iterdir():
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o600)
    _keep_capabilities(0)
    return run


def _too_long(run: Path, random: Random) -> Path:
    return run / ("x" * 300)


def _path_too_long(run: Path, random: Random) -> Path:
    return Path(f"{run}/{'x/' * 3000}")


def _unlisted_user(run: Path, random: Random) -> Path:
    """As in a container that was started with --user: no name, no home, and a run of somebody else's."""
    for name in ("HOME", "XDG_CACHE_HOME", *_NAMES_OF_USERS):
        os.environ.pop(name, None)
    run.chmod(0o555)
    ctypes.CDLL(None).prctl(_KEEP_CAPABILITIES, 1)
    os.setresuid(UNLISTED, UNLISTED, UNLISTED)
    _keep_capabilities(_READ_EVERYTHING)
    return run


def _no_home(run: Path, random: Random) -> Path:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        os.environ.pop(name, None)
    return run


def _latin(run: Path, random: Random) -> Path:
    for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        stream.reconfigure(encoding="latin-1", errors=errors)  # type: ignore[union-attr]
    return run


def _no_working_folder(run: Path, random: Random) -> Path:
    folder = run.parent / "left"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    return Path("run")


def _vanishes(run: Path, random: Random) -> Path:
    """Removed as the command is about to open or list something in it for the n-th time."""
    left = [random.randrange(8)]

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and left[0] >= 0 and str(run) in str(args[0]):
            left[0] -= 1
            if left[0] < 0:
                shutil.rmtree(run, ignore_errors=True)

    sys.addaudithook(hook)
    return run


KINDS: dict[str, Callable[[Path, Random], Path]] = {
    "a folder that one may not enter": _unreadable,
    "files that one may not read": _unreadable_file,
    "a name that is too long": _too_long,
    "a path that is too long": _path_too_long,
    "a user without a name and a home": _unlisted_user,
    "no HOME": _no_home,
    "output in Latin-1": _latin,
    "no working folder": _no_working_folder,
    "a run that vanishes": _vanishes,
}
_NEED_ROOT = (_unreadable, _unreadable_file, _unlisted_user)
_WORKS = (_no_home, _latin)
"""What only differs from the usual: whatever works elsewhere works here."""
_FAILS_EVERYWHERE = {"watch", "capture", "--from", "fetch", "--scrub"}
"""Nothing of the run is for these: there is no running job, no other machine and no nsys export."""


def trials(count: int, random: Random) -> Iterator[Outcome]:
    _load_everything()
    kinds = [kind for kind in KINDS if os.geteuid() == 0 or KINDS[kind] not in _NEED_ROOT]
    both = [(words, kind) for words in COMMANDS for kind in kinds]
    with tempfile.TemporaryDirectory(prefix="rankscope-surroundings-") as name:
        base = Path(name)
        base.chmod(0o755)
        _write_run(base / "raw")
        for number in range(count):
            words, kind = both[number % len(both)]
            seed = random.randrange(10**9)
            yield Outcome(kind, f"seed {seed}: {' '.join(words)}", _trial(base, words, kind, Random(seed)))


def _load_everything() -> None:
    """Once, before children are forked; most of the time of a command is spent on loading modules."""
    load_commands(*{words[0] for words in COMMANDS})
    for package in ("analysis", "store", "readers", "views", "viewer", "agents", "jobs"):
        for module in walk_packages(import_module(f"rankscope.{package}").__path__, f"rankscope.{package}."):
            import_module(module.name)
    for name in ("asyncio", "h11", "mcp", "starlette.applications", "uvicorn.protocols.http.h11_impl"):
        with suppress(ImportError):
            import_module(name)


def _trial(base: Path, words: tuple[str, ...], kind: str, random: Random) -> str:
    run = base / "run"
    shutil.copytree(base / "raw", run)
    argv: list[str] = []  # the child finds out what is in it

    def before() -> None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir("/")
        target = KINDS[kind](run, random)
        places = {RUN: str(target), OUT: str(target / "out")}
        argv.extend(_with_places(word, places) for word in words)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, _SERVED_SECONDS if words[0] == "view" else 0)

    ended = Child(argv, base, before).wait()
    shutil.rmtree(run, ignore_errors=True)
    return _difference(words, KINDS[kind], ended)


def _with_places(word: str, places: dict[str, str]) -> str:
    for name, path in places.items():
        word = word.replace(name, path)
    return word


def _difference(words: tuple[str, ...], kind: Callable[[Path, Random], Path], ended: Ended) -> str:
    if "Traceback" in ended.stderr or "defect of rankscope" in ended.stderr:
        return f"a traceback: {ended.stderr[-1500:]}"
    if ended.status == 0 or (words[0] == "view" and ended.status == 128 + signal.SIGINT):
        return ""
    if kind in _WORKS and _FAILS_EVERYWHERE.isdisjoint(words):
        return f"ended with {ended.status}, not 0: {ended.stderr[-500:]}"
    return ended.unclear()


def _write_run(folder: Path) -> None:
    """Two small ranks, with names that Latin-1 does not have."""
    folder.mkdir()
    for rank in range(2):
        events = [
            slice_event(f"ProfilerStep#{step}", 100.0 * step, 90.0, cat="user_annotation") for step in (1, 2)
        ]
        events += [slice_event("aten::mm → 中文", 100.0 * step + 1, 5.0) for step in (1, 2)]
        events += [kernel_event("gemm → 中文", 100.0 * step + 10, 40.0) for step in (1, 2)]
        write_kineto(folder / f"rank-{rank}.json", events)


PART = Part("odd surroundings", trials, many=len(COMMANDS) * len(KINDS), few=len(COMMANDS) * len(KINDS))
