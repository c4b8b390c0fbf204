"""One rank, or one node, under nsys or ncu: prepare, run, look at what came out, say it."""

from __future__ import annotations

import argparse
import getpass
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankscope import tools
from rankscope.capture.job_name import is_python
from rankscope.capture.launcher_command import bootstrap_environment
from rankscope.capture.plan import PLAN_VARIABLE, Plan
from rankscope.capture.rank import Identity, disagreements
from rankscope.capture.run_folder import rank_stem, read_json, remove_if_empty
from rankscope.capture.schedule import OnSignal
from rankscope.capture.supervise import replace_process
from rankscope.capture.under_tool import preflight, reports
from rankscope.capture.under_tool.supervise import Ended, run_under_tool, wrap_application
from rankscope.capture.under_tool.temp_folder import make_temp_folder
from rankscope.cli.tool_options import is_ranged, ncu_options, nsys_options
from rankscope.errors import CaptureError, RankscopeError, ToolError
from rankscope.inapp.rank_files import RankFiles, clock_anchor
from rankscope.units import format_bytes

_SUFFIX = {"nsys": ".nsys-rep", "ncu": ".ncu-rep"}
_ANSWER_SECONDS = 30


def run_rank(plan: Plan, identity: Identity, args: argparse.Namespace) -> int:
    """The whole life of a wanted rank; whatever cannot be done, the job runs without the profiler.

    Returns its status: an exit code, or minus the signal that ended it.
    """
    try:
        rank = ToolRank(plan, identity, args)
    except RankscopeError as error:
        _say(f"rank {identity.rank}: {error}\n  The job runs without {plan.tool}.")
        if args.dry_run:
            print(f"rank {identity.rank}: {shlex.join(plan.command)}")
            return 0
        if plan.output is not None:
            remove_if_empty(Path(plan.output))
        replace_process(plan.command, os.environ)
        return 1
    if args.dry_run:
        print(f"rank {identity.rank}: {rank.spelled()}")
        for note in rank.notes:
            print(f"rankscope: {note}", file=sys.stderr)
        return 0
    return rank.run()


class ToolRank:
    """What is known before the job starts."""

    def __init__(self, plan: Plan, identity: Identity, args: argparse.Namespace) -> None:
        self.plan = plan
        self.identity = identity
        self.ranged = is_ranged(args)
        self.notes: list[str] = []
        self.tool = self._found(args)
        self.options = self._fitted(args)
        self.files = RankFiles(plan, identity, os.environ)
        self.target = self.files.folder / f"{self._stem(args)}{_SUFFIX[plan.tool]}"
        self.prefix: list[str] = self._as_root()
        self.notes += disagreements(os.environ, identity)
        self._said: list[str] = []
        self._inside: list[dict[str, Any]] = []
        self._began = self._ended = clock_anchor()
        self._refuse_unclear_target(args)

    def _refuse_unclear_target(self, args: argparse.Namespace) -> None:
        if args.per_node and (self.identity.local_size or 1) > 1:
            raise CaptureError(
                "--per-node is for one process a node, such as torchrun",
                why=f"{self.identity.source} has started {self.identity.local_size} ranks on this node itself.",
                hint="Leave --per-node out: each selected rank then has its own report.",
            )
        if self.target.exists() and not args.force:
            raise CaptureError(
                f"{self.target} exists already",
                why=f"{self.plan.tool} would put its report elsewhere, without a word.",
                hint="Name another folder with -o DIR, or give -f to replace it.",
            )

    def _stem(self, args: argparse.Namespace) -> str:
        if args.per_node:
            return f"node-{self.identity.node or 0:05d}"
        return rank_stem(self.identity.rank)

    def _found(self, args: argparse.Namespace) -> tools.Tool:
        name = self.plan.tool
        try:
            return tools.find_tool(name, args.nsys if name == "nsys" else args.ncu)
        except ToolError as error:
            if not args.dry_run:
                raise
            self.notes.append(error.message)  # a dry run is often on another machine than the job
            return tools.Tool(name, Path(name), ())

    def _fitted(self, args: argparse.Namespace) -> tools.NsysOptions | tools.NcuOptions:
        """The options, without what this machine cannot do."""
        if self.plan.tool == "nsys":
            asked = nsys_options(args, self.plan.when)
            options, notes = preflight.fit_nsys(asked, driver=preflight.has_driver(), ranged=self.ranged)
            self.notes += notes
            return options
        driver = preflight.has_driver() or args.dry_run
        fitted, notes = preflight.fit_ncu(
            ncu_options(args), driver=driver, virtual=preflight.is_virtual(), clocks=args.clock_control
        )
        self.notes += notes
        if not args.quiet:
            self.notes.append(reports.ncu_advice(fitted.section_set, fitted.launch_count))
        return fitted

    def _as_root(self) -> list[str]:
        """sudo and the environment it would drop, where nsys must be root and is not."""
        options = self.options
        if not isinstance(options, tools.NsysOptions) or options.run_as is None or os.geteuid() == 0:
            return []
        answer = subprocess.run(
            tools.nsys_check_privileges(str(self.tool.path)),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
        )
        if options.run_as == getpass.getuser() and not tools.refuses_cpu_profiling(answer.stdout):
            # Nothing here needs root: --run-as would.
            self.options = replace(options, run_as=None)
            self.notes.append("nsys needs no root here: --run-as is left out")
            return []
        kept = [f"{name}={os.environ[name]}" for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ]
        return ["sudo", "-n", "-E", "env", *kept]

    def command(self, application: Sequence[str], log: Path | None = None) -> list[str]:
        words = list(application)
        if isinstance(self.options, tools.NsysOptions):
            line = tools.nsys_profile(str(self.tool.path), self.options, self.target, words)
        else:
            line = tools.ncu_profile(str(self.tool.path), self.options, self.target, log, words)
        return [*self.prefix, *line]

    def spelled(self) -> str:
        """The line one could type: without our supervision, which a shell has not."""
        env = self._environment(Path("/tmp"))
        changed = [
            f"{name}={shlex.quote(value)}" for name, value in env.items() if os.environ.get(name) != value
        ]
        return " ".join([*changed, shlex.join(self.command(self.plan.command))])

    def _environment(self, windows: Path) -> Mapping[str, str]:
        """What the application's processes need to know: where to open the range, when steps were asked for."""
        env: dict[str, str] = dict(os.environ)
        ranged = False
        if isinstance(self.options, tools.NsysOptions):
            env |= tools.nsys_environment(self.options)
            ranged = self.ranged and self.options.capture_range is not None
        else:
            ranged = self.options.ranged
        if not ranged:
            return env
        wish = self.plan._replace(
            output=str(self.files.folder),
            job=self.files.job,
            speaks=False,
            direct=is_python(Path(self.plan.command[0]).name),
            windows=str(windows),
        )
        return bootstrap_environment(env, wish.to_json(), PLAN_VARIABLE)

    # -- the run

    def run(self) -> int:
        try:
            self.files.claim()
            temp = make_temp_folder(os.environ, f"rankscope-{self.plan.tool}-")
        except RankscopeError as error:
            self._tell(f"{error}\n  The job runs without {self.plan.tool}.")
            replace_process(self.plan.command, os.environ)
            return 1
        self.notes += temp.notes
        for note in self.notes:
            self._tell(note)
        ended = self._attempt(temp.path)
        if not ended.started:
            self._finish(reports.Left((), (), f"{self.plan.tool} did not start the job"))
            shutil.rmtree(temp.path, ignore_errors=True)
            replace_process(self.plan.command, os.environ)
        left = self._collect(temp.path, ended)
        self._merge_windows(temp.path)
        self._finish(left)
        shutil.rmtree(temp.path, ignore_errors=True)
        return ended.status

    def _attempt(self, temp: Path) -> Ended:
        """Run it; where the profiler refuses to start the job, once more without what it may have refused."""
        began = clock_anchor()
        ended = self._once(temp)
        if not ended.started:
            said = reports.last_words(reports.read_log(temp / "log"))
            if isinstance(self.options, tools.NsysOptions) and self.options.has_extras:
                self._tell(f"nsys refused to start the job ({said}); once more without the extra options")
                self.options = replace(self.options, gpu_metrics_device=None, nic_metrics=False, extra=())
                (temp / "log").unlink(missing_ok=True)
                ended = self._once(temp)
                said = reports.last_words(reports.read_log(temp / "log"))
            if not ended.started:
                self._tell(f"{self.plan.tool} refused to start the job ({said}); the job runs without it")
        self._began, self._ended = began, clock_anchor()
        return ended

    def _once(self, temp: Path) -> Ended:
        log = temp / "log"
        # ncu leaves the application's streams alone, and takes a file for its own words; sudo closes descriptors.
        supervised = wrap_application(
            self.plan.command,
            self._environment(temp),
            temp,
            own_streams=self.plan.tool == "nsys" and not self.prefix,
        )
        env = {**os.environ, "TMPDIR": str(temp)}
        when = self.plan.when
        asks = signal.Signals[f"SIG{when.signal}"] if isinstance(when, OnSignal) else None
        return run_under_tool(self.command(supervised.application, log), env, supervised, log, asks)

    def _collect(self, temp: Path, ended: Ended) -> reports.Left:
        log = reports.read_log(temp / "log")
        if isinstance(self.options, tools.NcuOptions):
            return reports.collect_ncu(self.target, log, self.options.section_set)
        return reports.collect_nsys(
            self.tool,
            self.target,
            temp,
            log,
            ranged=self.options.capture_range,
            ended_early=ended.tool_status < 0,
        )

    def _merge_windows(self, temp: Path) -> None:
        """What the processes inside noted about their steps (one file for each of them)."""
        for path in sorted(temp.glob("rank-*.json")):
            noted = read_json(path) or {}
            self._inside += noted.get("windows", [])
            self._said += noted.get("notes", [])
            self.files.manifest["steps"] = noted.get("steps")

    def _finish(self, left: reports.Left) -> None:
        manifest = self.files.manifest
        manifest["tool"] = {"name": self.tool.name, "version": ".".join(map(str, self.tool.version))}
        manifest["notes"] += [*self.notes, *left.notes, *self._said]
        for index, path in enumerate(left.files):
            inside = self._inside[index] if index < len(self._inside) else {}
            manifest["windows"].append(
                {
                    "index": index,
                    "kind": self.plan.tool,
                    "state": "partial" if left.why else "whole",
                    "why": left.why,
                    "file": path.name,
                    "bytes": path.stat().st_size,
                    "first_step": inside.get("first_step"),
                    "last_step": inside.get("last_step"),
                    "start": inside.get("start", self._began),
                    "end": inside.get("end", self._ended),
                }
            )
        if left.why and not left.files:
            manifest["notes"].append(left.why)
        manifest.update(state="done")
        manifest["clock"].append(clock_anchor())
        try:
            self.files.save()
        except OSError as error:
            self._tell(f"cannot write the rank's manifest: {error.strerror}")
        self._speak(left)

    def _speak(self, left: reports.Left) -> None:
        for note in left.notes:
            self._tell(note)
        # What the processes inside have said themselves ("the script ended after 3 steps …") is reason enough.
        if left.why and not (self._said and not left.files):
            self._tell(left.why)
        rank_zero_speaks = self.identity.rank == 0 or self.files.first
        if left.files and self.plan.speaks and rank_zero_speaks and not self.plan.quiet:
            size = format_bytes(sum(path.stat().st_size for path in left.files), 1)
            self._tell(f"wrote {left.files[0].name} ({size}). Next: rankscope stats {self.files.folder}")

    def _tell(self, text: str) -> None:
        _say(f"rank {self.identity.rank}: {text}")


def _say(text: str) -> None:
    print(f"rankscope: {text}", file=sys.stderr, flush=True)
