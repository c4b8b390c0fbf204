"""One rank, or one node, under nsys or ncu: prepare, run, collect the reports, write the rank's manifest."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rankscope import tools
from rankscope.capture.child_process import replace_process
from rankscope.capture.job_name import is_python
from rankscope.capture.launcher_command import bootstrap_environment, command_text
from rankscope.capture.plan import PLAN_VARIABLE, Front, Plan
from rankscope.capture.rank import Identity, disagreements
from rankscope.capture.rank_files import RankFiles, clock_anchor
from rankscope.capture.run_folder import expand, rank_stem, read_json, remove_if_empty
from rankscope.capture.schedule import EveryStep, TimeWindow
from rankscope.capture.under_tool import preflight, reports
from rankscope.capture.under_tool.temp_folder import make_temp_folder
from rankscope.capture.under_tool.tool_process import Ended, run_under_tool, wrap_application
from rankscope.capture.wrapper import Output, requested_signal
from rankscope.errors import CaptureError, RankscopeError, ToolError
from rankscope.files import close_to_others
from rankscope.text.run_words import shell_word
from rankscope.units import format_bytes

_SUFFIX = {"nsys": ".nsys-rep", "ncu": ".ncu-rep"}


@dataclass(frozen=True, kw_only=True)
class ToolRequest:
    """What `rankscope profile --tool nsys` or `--tool ncu` was asked for."""

    options: tools.NsysOptions | tools.NcuOptions
    """%q{VAR} in ``extra`` is not expanded yet: each rank does that with its own environment."""
    program: str | None = None
    """The tool's path, when it is not on PATH."""
    per_node: bool = False
    """One report for all processes of a node."""
    ranged: bool = False
    """Steps or a time window were asked for; otherwise the whole run is recorded."""
    clock_control: str | None = None
    """ncu's option; None: decided by what this machine allows."""
    dry_run: bool = False


class RankEnded(NamedTuple):
    """A rank that has ended."""

    status: int
    """An exit code, or minus the signal that ended it."""
    collect: Callable[[], None] = lambda: None
    """Find the profiler's reports and describe them in the run folder."""


def run_rank(plan: Plan, identity: Identity, request: ToolRequest, output: Output) -> RankEnded:
    """Run a selected rank from start to end; where the profiler cannot be used, the job runs without it."""
    try:
        rank = ToolRank(plan, identity, request, output)
    except RankscopeError as error:
        output.message(f"rank {identity.rank}: {error}\n  The job runs without {plan.tool}.")
        if request.dry_run:
            output.line(f"rank {identity.rank}: {shlex.join(plan.command)}")
            return RankEnded(0)
        if (
            plan.output is not None and plan.front == Front.this_process()
        ):  # else that process reports the end
            remove_if_empty(Path(plan.output))
        replace_process(plan.command, os.environ)
        return RankEnded(1)
    if request.dry_run:
        output.line(f"rank {identity.rank}: {rank.command_line()}")
        for note in rank.notes:
            output.message(note)
        return RankEnded(0)
    return rank.run()


class ToolRank:
    """A rank under a tool. The constructor checks what can be checked before the job starts."""

    def __init__(self, plan: Plan, identity: Identity, request: ToolRequest, output: Output) -> None:
        self.plan = plan
        self.identity = identity
        self.request = request
        self.output = output
        self.notes: list[str] = []
        try:
            self.tool = tools.find_tool(plan.tool, request.program)
        except ToolError as error:
            if not request.dry_run:
                raise
            self.notes.append(error.message)  # a dry run is often on another machine than the job
            self.tool = tools.Tool(plan.tool, Path(plan.tool), ())
        self.prefix: list[str] = []
        """sudo, where nsys must be root and is not."""
        self.options = self._usable_options()
        self.files = RankFiles(plan, identity, os.environ)
        self.notes += disagreements(os.environ, identity)
        if request.per_node and (identity.local_size or 1) > 1:
            raise CaptureError(
                "--per-node is for one process a node, such as torchrun",
                why=f"{identity.source} has started {identity.local_size} ranks on this node itself.",
                hint="Leave --per-node out: each selected rank then has its own report.",
            )

    @property
    def target(self) -> Path:
        """The report. Its folder is certain once the rank is claimed."""
        identity = self.identity
        stem = f"node-{identity.node or 0:05d}" if self.request.per_node else rank_stem(identity.rank)
        return self.files.folder / f"{stem}{_SUFFIX[self.plan.tool]}"

    def _usable_options(self) -> tools.NsysOptions | tools.NcuOptions:
        """The options, without those that this machine cannot fulfil."""
        request, notes = self.request, self.notes
        asked = replace(
            request.options, extra=tuple(expand(word, os.environ) for word in request.options.extra)
        )
        driver, dry_run = preflight.has_driver(), request.dry_run
        if isinstance(asked, tools.NcuOptions):
            ncu, said = preflight.fit_ncu(
                asked,
                driver=driver,
                virtual=preflight.is_virtual(),
                clocks=request.clock_control,
                dry_run=dry_run,
            )
            notes += said if self.plan.quiet else [*said, reports.ncu_advice(ncu.used_set, ncu.used_count)]
            return ncu
        options, said = preflight.fit_nsys(
            asked, tool=self.tool, driver=driver, ranged=request.ranged, dry_run=dry_run
        )
        notes += said
        if not options.traces("nvtx"):
            notes.append("nsys does not record NVTX (-t ...,nvtx): the report has no steps")
        self.prefix, options, said = preflight.as_root(str(self.tool.path), options, dry_run=dry_run)
        notes += said
        return options

    def command(self, application: Sequence[str], log: Path | None = None) -> list[str]:
        program, words = str(self.tool.path), list(application)
        if isinstance(self.options, tools.NsysOptions):
            return [*self.prefix, *tools.nsys_profile(program, self.options, self.target, words)]
        return tools.ncu_profile(program, self.options, self.target, log, words)

    def command_line(self) -> str:
        """The line for a shell: without our supervision, and without the variables that only mark every step."""
        env = self._environment(Path("/tmp")) if self._by_steps else self._tool_environment()
        return command_text(self.command(self.plan.command), env)

    @property
    def _by_steps(self) -> bool:
        """Whether the application begins and ends the recording; nsys does so itself for a time window."""
        by_clock = self.plan.tool == "nsys" and isinstance(self.plan.when, TimeWindow)
        return self.request.ranged and not by_clock

    def _tool_environment(self) -> dict[str, str]:
        options = self.options
        return os.environ | (
            tools.nsys_environment(options) if isinstance(options, tools.NsysOptions) else {}
        )

    def _environment(self, windows: Path) -> Mapping[str, str]:
        """The application's environment: it makes the Python processes mark their steps, and open the range for those
        that were asked for."""
        waits = isinstance(self.options, tools.NcuOptions) or self.options.capture_range is not None
        plan = self.plan._replace(
            when=self.plan.when if self._by_steps else EveryStep(),
            opens_range=self._by_steps and waits,
            output=str(self.files.folder),
            job=self.files.job,
            speaks=False,
            direct=is_python(Path(self.plan.command[0]).name),
            windows=str(windows),
        )
        return bootstrap_environment(self._tool_environment(), plan.to_json(), PLAN_VARIABLE)

    def run(self) -> RankEnded:
        """Run it. If the profiler refuses to start the job, try again: once as it is where the reason may pass, then
        without the options it may have refused. A job that has started is never started again."""
        try:
            self.files.claim()
            if self.target.exists() and not self.options.overwrite:
                raise CaptureError(
                    f"{self.target} exists already",
                    why=f"{self.plan.tool} would write its report to another folder, without a message.",
                    hint="Name another folder with -o DIR, or give -f to replace it.",
                )
            temp, notes = make_temp_folder(os.environ, f"rankscope-{self.plan.tool}-")
        except RankscopeError as error:
            self._message(f"{error}\n  The job runs without {self.plan.tool}.")
            replace_process(self.plan.command, os.environ)
            return RankEnded(1)
        self.notes += notes
        for note in self.notes:
            self._message(note)
        log = temp / "log"
        began = clock_anchor()
        ended = self._once(temp, log)
        options = self.options
        if isinstance(options, tools.NsysOptions):
            if not ended.started and tools.nsys_lost_its_agent(reports.read_log(log)):
                ended = self._once(temp, log, "once more")
            if not ended.started and options.has_extras:
                self.options = replace(options, gpu_metrics_device=None, nic_metrics=False, extra=())
                ended = self._once(temp, log, "without the extra options")
        text = reports.read_log(log)
        if not ended.started:
            reason = reports.refusal_reason(text)
            self._message(f"{self.plan.tool} refused to start the job ({reason}); the job runs without it")
        span = began, clock_anchor()
        if not ended.started:
            self._finish(reports.Left((), (), f"{self.plan.tool} did not start the job"), temp, *span)
            replace_process(self.plan.command, os.environ)

        def collect() -> None:
            if isinstance(self.options, tools.NcuOptions):
                left = reports.collect_ncu(self.target, text)
            else:
                left = reports.collect_nsys(
                    self.tool,
                    self.target,
                    temp,
                    text,
                    ranged=self.options.capture_range,
                    ended_early=ended.tool_status < 0,
                )
            self._finish(left, temp, *span)

        return RankEnded(ended.status, collect)

    def _once(self, temp: Path, log: Path, again: str = "") -> Ended:
        if again:
            reason = reports.refusal_reason(reports.read_log(log))
            self._message(f"nsys refused to start the job ({reason}); trying again {again}")
            log.unlink(missing_ok=True)
        # ncu does not redirect the application's streams and logs to a file; sudo closes inherited descriptors.
        supervised = wrap_application(
            self.plan.command,
            self._environment(temp),
            temp,
            own_streams=self.plan.tool == "nsys" and not self.prefix,
            shown=not isinstance(self.options, tools.NsysOptions) or self.options.shows_output,
        )
        env = {**os.environ, "TMPDIR": str(temp)}
        command = self.command(supervised.application, log)
        return run_under_tool(command, env, supervised, log, requested_signal(self.plan))

    def _finish(
        self, left: reports.Left, temp: Path, began: Mapping[str, int], end: Mapping[str, int]
    ) -> None:
        """Describe the reports in the rank's manifest, with what the captured processes wrote about their steps, one
        file each; say what there is."""
        manifest = self.files.manifest
        windows: list[dict[str, Any]] = []
        inner_notes: list[str] = []
        more: dict[str, Any] = {}
        for path in sorted(temp.glob("rank-*.json")):
            noted = read_json(path) or {}
            windows += noted.get("windows", [])
            inner_notes += noted.get("notes", [])
            if noted.get("state") == "running":  # it was killed before it wrote its steps
                more = {"steps": "not counted"}
            manifest["steps"] = noted.get("steps")
        shutil.rmtree(temp, ignore_errors=True)
        manifest["tool"] = {"name": self.tool.name, "version": ".".join(map(str, self.tool.version))}
        manifest["notes"] += [*self.notes, *left.notes, *inner_notes]
        for index, path in enumerate(left.files):
            with contextlib.suppress(OSError):  # --run-as: it may belong to root
                close_to_others(path)
            inside = windows[index] if index < len(windows) else {}
            if isinstance(self.options, tools.NsysOptions) and not self.options.traces("nvtx"):
                inside = {key: inside[key] for key in ("start", "end") if key in inside}
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
                    "start": inside.get("start", began),
                    "end": inside.get("end", end),
                    **more,
                }
            )
        manifest["notes"] += [left.why] if left.why and not left.files else []
        manifest.update(state="done")
        manifest["clock"].append(clock_anchor())
        try:
            self.files.save()
        except OSError as error:
            self._message(f"cannot write the rank's manifest: {error.strerror}")
        for note in left.notes:
            self._message(note)
        # A captured process may have printed the reason already ("the script ended after 3 steps …").
        if left.why and (left.files or not inner_notes):
            self._message(left.why)
        reports_for_run = self.identity.rank == 0 or self.files.first
        if left.files and self.plan.speaks and reports_for_run and not self.plan.quiet:
            size = format_bytes(sum(path.stat().st_size for path in left.files), 1)
            self._message(
                f"wrote {left.files[0].name} ({size}). Next: rankscope stats {shell_word(self.files.folder)}"
            )

    def _message(self, text: str) -> None:
        self.output.message(f"rank {self.identity.rank}: {text}")
