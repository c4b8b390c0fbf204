"""The parts of `rankscope profile` that start a captured command; an unselected rank never imports this."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rankscope.capture.job_name import is_python, name_run
from rankscope.capture.launcher_command import bootstrap_environment, rewrite
from rankscope.capture.plan import PLAN_VARIABLE, Plan
from rankscope.capture.rank import Identity, detect
from rankscope.capture.run_folder import Manifest, open_run, rank_manifests, remove_if_empty
from rankscope.capture.schedule import OnSignal
from rankscope.capture.selector import parse_selector
from rankscope.capture.supervise import end_like, replace_process, run_command
from rankscope.cli.profile import starts_ranks_here
from rankscope.errors import CaptureError
from rankscope.inapp.rank_files import run_manifest
from rankscope.ranges import as_ranges
from rankscope.units import format_bytes, format_ns

# What `rankscope stats` needs beyond the standard library.
STATS_LIBRARIES = ("duckdb", "numpy", "isal")
# How long --stats waits for ranks that end later than the one that prints.
OTHER_RANKS_WAIT_S = 60.0


def launcher_command(
    command: Sequence[str], words: Sequence[str], env: Mapping[str, str]
) -> list[str] | None:
    """The launcher's command with `rankscope profile` before its program, or None for anything but a
    launcher.
    """
    return rewrite(command, [sys.executable, "-m", "rankscope", "profile", *words, "--inner", "--"], env)


def in_front(plan: Plan, command: Sequence[str], words: Sequence[str], args: argparse.Namespace) -> int:
    """In front of a launcher, a script or a program: start it, wait, say where the run is."""
    inner = args.inner
    try:
        folder, job = _name_run(plan)
        if not inner and not args.dry_run:
            open_run(folder, run_manifest(plan, job), force=plan.force)
    except CaptureError as error:
        _say(f"{error}")
        return _run_plainly(command, args)
    located = [*words, "-o", str(folder), "--job", job, *(["-q"] if plan.quiet else [])]
    wraps = args.per_node and starts_ranks_here(command)
    launched = None if wraps else launcher_command(command, located, os.environ)
    if launched is None and plan.tool != "torch":
        return _tool_in_front(plan._replace(output=str(folder), job=job, speaks=False, force=False), args)
    env: Mapping[str, str] = os.environ
    if launched is None:
        direct = is_python(Path(command[0]).name)
        wish = plan._replace(output=str(folder), job=job, speaks=False, direct=direct, force=False)
        env = bootstrap_environment(os.environ, wish.to_json(), PLAN_VARIABLE)
        launched = list(command)
    if args.dry_run:
        print(_spelled(launched, env))
        return 0
    kept = _kept_signal(plan)
    if inner:
        replace_process(launched, env, kept)
    status = run_command(launched, env, kept, lambda: _pass_on(folder, kept))
    _summary(folder, plan)
    _stats(folder, args)
    return end_like(status)


def captured_rank(plan: Plan, identity: Identity, args: argparse.Namespace) -> int:
    """Behind a launcher, a selected rank: become the command, armed by its environment."""
    try:
        folder, job = _name_run(plan)
    except CaptureError as error:
        _say(f"rank {identity.rank}: {error}\n  The job runs without being captured.")
        return _run_plainly(plan.command, args)
    if plan.tool != "torch":
        return _tool_behind(plan._replace(output=str(folder), job=job), identity, args)
    wish = plan._replace(direct=is_python(Path(plan.command[0]).name), output=str(folder), job=job)
    env = bootstrap_environment(os.environ, wish.to_json(), PLAN_VARIABLE)
    if args.dry_run:
        print(f"rank {identity.rank}: {_spelled(plan.command, env)}")
        return 0
    if not (args.stats and identity.rank == 0):
        replace_process(plan.command, env, _kept_signal(plan))
    status = run_command(plan.command, env)
    _wait_for_others(folder)
    _stats(folder, args)
    return end_like(status)


def _tool_in_front(plan: Plan, args: argparse.Namespace) -> int:
    """nsys or ncu around a command that no launcher divides into ranks: it is rank 0."""
    from rankscope.cli.profile_tool import run_rank

    folder = Path(plan.output or "")
    identity = detect(os.environ, plan.identity)
    if not parse_selector(plan.ranks).selects(identity):
        remove_if_empty(folder)
        _say(f"--ranks {plan.ranks} does not select rank {identity.rank}; the job runs without {plan.tool}")
        return _run_plainly(plan.command, args)
    status = run_rank(plan, identity, args)
    if not args.dry_run:
        _summary(folder, plan)
        _stats(folder, args)
    return end_like(status)


def _tool_behind(plan: Plan, identity: Identity, args: argparse.Namespace) -> int:
    from rankscope.cli.profile_tool import run_rank

    status = run_rank(plan, identity, args)
    if args.stats and identity.rank == 0 and not args.dry_run and plan.output is not None:
        _wait_for_others(Path(plan.output))
        _stats(Path(plan.output), args)
    return end_like(status)


def _kept_signal(plan: Plan) -> signal.Signals | None:
    return signal.Signals[f"SIG{plan.when.signal}"] if isinstance(plan.when, OnSignal) else None


def _name_run(plan: Plan) -> tuple[Path, str]:
    return name_run(os.environ, detect(os.environ, plan.identity), plan.command, plan.output, plan.job)


def _run_plainly(command: Sequence[str], args: argparse.Namespace) -> int:
    if args.dry_run:
        print(shlex.join(command))
        return 0
    replace_process(command, os.environ)
    return 1


def _spelled(command: Sequence[str], env: Mapping[str, str]) -> str:
    """A command line one could type, with the environment that differs from ours in front."""
    changed = [f"{name}={shlex.quote(value)}" for name, value in env.items() if os.environ.get(name) != value]
    return " ".join([*changed, shlex.join(command)])


def _pass_on(folder: Path, number: signal.Signals | None) -> None:
    """--on-signal sent to the command in front goes to the captured ranks of this host."""
    host = os.uname().nodename
    for manifest in rank_manifests(folder):
        if number is not None and manifest.get("host") == host and manifest.get("state") == "running":
            try:
                os.kill(int(manifest["pid"]), number)
            except (ProcessLookupError, PermissionError) as error:
                _say(
                    f"rank {manifest['rank']} (process {manifest['pid']}) cannot be reached: {error.strerror}"
                )


def _summary(folder: Path, plan: Plan) -> None:
    """Where the run is, what it cost, and the next command: or that there is none."""
    manifests = list(rank_manifests(folder))
    if plan.tool != "torch":
        _tool_summary(folder, plan, manifests)
        return
    if not manifests:
        remove_if_empty(folder)
        _say(
            f"nothing was captured: no wanted rank (--ranks {plan.ranks}) of the command trained with torch\n"
            "  rankscope looks into Python processes; python -I, -S and -E keep it out.\n"
            "  See what would run: rankscope profile --dry-run ..."
        )
        return
    windows = [(manifest["rank"], window) for manifest in manifests for window in manifest["windows"]]
    kept = [(rank, window) for rank, window in windows if window.get("state") in ("whole", "partial")]
    if not kept or plan.quiet:
        return
    ranks = sorted({rank for rank, _ in kept})
    partial = sum(window["state"] == "partial" for _, window in kept)
    size = format_bytes(sum(window["bytes"] for _, window in kept), 1)
    longest = max((window for _, window in kept), key=lambda window: int(window["stall_ns"]))
    export = longest["stall_ns"] - longest["stop_ns"]
    steps = f"steps {longest['first_step']}-{longest['last_step']}"
    _say(
        f"{_plural(len(kept), 'trace')} of {_plural(len(ranks), 'rank')} ({as_ranges(ranks)}), {steps}, {size}"
        + (f", {partial} partial" if partial else "")
        + f"\n  Training stood still for {format_ns(longest['stall_ns'], 2)} at most: stop "
        f"{format_ns(longest['stop_ns'], 2)} (torch's own), export {format_ns(export, 2)}.\n"
        f"  Next: rankscope stats {_short(folder)}"
    )


def _tool_summary(folder: Path, plan: Plan, manifests: Sequence[Manifest]) -> None:
    windows = [(manifest["rank"], window) for manifest in manifests for window in manifest["windows"]]
    if not manifests:
        remove_if_empty(folder)
        _say(
            f"nothing was captured: no wanted rank (--ranks {plan.ranks}) of the command ran under {plan.tool}\n"
            "  See what would run: rankscope profile --dry-run ..."
        )
    if not windows or plan.quiet:
        return
    ranks = sorted({rank for rank, _ in windows})
    size = format_bytes(sum(window["bytes"] for _, window in windows), 1)
    partial = sum(window["state"] == "partial" for _, window in windows)
    _say(
        f"{_plural(len(windows), f'{plan.tool} report')} of {_plural(len(ranks), 'rank')} ({as_ranges(ranks)}), {size}"
        + (f", {partial} partial" if partial else "")
        + f"\n  Next: rankscope stats {_short(folder)}"
    )


def _wait_for_others(folder: Path) -> None:
    deadline = time.monotonic() + OTHER_RANKS_WAIT_S
    while time.monotonic() < deadline and any(one["state"] == "running" for one in rank_manifests(folder)):
        time.sleep(0.2)


def _stats(folder: Path, args: argparse.Namespace) -> None:
    if not args.stats or not folder.is_dir() or not any(_traces(rank_manifests(folder))):
        return
    missing = [
        name for name in ("rankscope.cli.stats", *STATS_LIBRARIES) if importlib.util.find_spec(name) is None
    ]
    if missing:
        _say(
            f"--stats cannot run here: {', '.join(missing)} is not installed\n"
            f"  Where rankscope is installed in full: rankscope stats {_short(folder)}"
        )
        return
    sys.stdout.flush()
    subprocess.run([sys.executable, "-m", "rankscope", "stats", str(folder)], check=False)


def _traces(manifests: Iterable[Manifest]) -> Iterable[str]:
    for manifest in manifests:
        yield from (window["file"] for window in manifest["windows"] if window.get("bytes"))


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _short(folder: Path) -> str:
    """Relative to where the user is, when it is below."""
    return shlex.quote(str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder))


def _say(text: str) -> None:
    print(f"rankscope: {text}", file=sys.stderr, flush=True)
