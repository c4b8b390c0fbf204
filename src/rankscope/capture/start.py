"""Start a command so that its selected ranks are captured, and wait for it where something follows.

In front of a launcher, `rankscope profile` is inserted into the launcher's command; in front of anything else, and
for each selected rank, the environment makes the Python processes capture themselves; nsys and ncu wrap the command.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rankscope.capture.after_job import within_seconds
from rankscope.capture.child_process import replace_process, run_command
from rankscope.capture.job_name import is_python, name_run
from rankscope.capture.launcher_command import bootstrap_environment, command_text, own_command, rewrite
from rankscope.capture.plan import PLAN_VARIABLE, Front, Plan
from rankscope.capture.rank import Identity, detect
from rankscope.capture.rank_files import run_manifest
from rankscope.capture.run_folder import folder_of, open_run, rank_manifests, remove_if_empty
from rankscope.capture.selector import parse_selector
from rankscope.capture.summary import summary
from rankscope.capture.under_tool.tool_rank import ToolRequest, run_rank
from rankscope.capture.wrapper import Output, is_launcher_name, requested_signal, starts_ranks_here
from rankscope.errors import CaptureError, RankscopeError, system_error
from rankscope.text.run_words import short_path

# How long a rank that prints tables waits for ranks that end later.
_OTHER_RANKS_WAIT_S = 60.0


class Ended(NamedTuple):
    """A command that has ended: its status is final, and what follows cannot change it (`after_job`)."""

    status: int
    """An exit code, or minus the signal that ended it."""
    report: Callable[[], Path | None] = lambda: None
    """Collect and sum up what was captured; the run folder, where this process may show its tables."""


_SHOWN = Ended(0)
"""--dry-run: the command was only shown."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One call of `rankscope profile`. A method returns only where it does not replace this process."""

    plan: Plan
    options: Sequence[str]
    """The options again, as words, for the command that is inserted into a launcher's."""
    output: Output
    tool: ToolRequest | None = None
    """nsys or ncu; None is torch's profiler."""
    inserted: bool = False
    """This is such an inserted command: the one in front has opened the run folder and reports the end."""
    dry_run: bool = False
    stay: bool = False
    """Wait for the command, because tables are shown after it."""

    def in_front(self) -> Ended:
        """In front of a launcher, a script or a program: start it and wait."""
        plan, command = self.plan, self.plan.command
        try:
            folder, job = self._open_run()
            front = plan.front or Front.this_process()
            plan = plan._replace(output=str(folder), job=job, speaks=False, force=False, front=front)
            wraps = self.tool is not None and self.tool.per_node and starts_ranks_here(command)
            launched = None if wraps else self._with_us_inserted(folder, job, front)
            env = _capturing_environment(plan) if launched is None else os.environ
        except Exception as error:  # noqa: BLE001  (whatever is wrong with us, the job runs)
            return self._run_plainly(error)
        if launched is None and self.tool is not None:
            if is_launcher_name(command) and not starts_ranks_here(command):
                # Its command line does not tell where the program begins.
                remove_if_empty(folder)
                tool, launcher = plan.tool, Path(command[0]).name
                return self._run_plainly(
                    CaptureError(
                        f"cannot tell the program in this {launcher} command: the job runs without {tool}",
                        why="An option is unknown, or the program is in a file or a container.",
                        hint=f"Put it behind {launcher}: {launcher} OPTIONS rankscope profile --tool {tool} PROGRAM",
                    )
                )
            return self._tool_in_front(plan, folder, self.tool)
        launched = list(command) if launched is None else launched
        if self.dry_run:
            self.output.line(command_text(launched, env))
            return _SHOWN
        requested = requested_signal(plan)
        if self.inserted:
            replace_process(launched, env, requested, command)
        status = run_command(launched, env, requested, lambda: self._pass_signal_on(folder), command)
        return Ended(status, lambda: self._report(folder, status))

    def selected_rank(self, identity: Identity) -> Ended:
        """One selected rank behind a launcher: become the command, with an environment that captures it."""
        began = time.time_ns()
        try:
            folder, job = self._name_run()
            plan = self.plan._replace(output=str(folder), job=job)
            env = _capturing_environment(plan)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with us, the job runs)
            return self._run_plainly(error, f"rank {identity.rank}: ")
        shows_tables = self.stay and identity.rank == 0
        if self.tool is not None:
            ended = run_rank(plan, identity, self.tool, self.output)
            status, collect = ended.status, ended.collect
        elif self.dry_run:
            self.output.line(f"rank {identity.rank}: {command_text(plan.command, env)}")
            return _SHOWN
        else:
            if not shows_tables:
                replace_process(plan.command, env, requested_signal(plan), plan.command)
            status, collect = run_command(plan.command, env, plain=plan.command), lambda: None
        if not shows_tables or self.dry_run:
            return Ended(status, collect)

        def report() -> Path | None:
            collect()
            taken = folder_of(folder, job)  # another than was asked for, where that holds an earlier job
            manifests = list(rank_manifests(taken)) if taken is not None else []
            # Jobs without an id of their own have the same one each time, and the second is refused.
            clocks = [manifest["clock"] for manifest in manifests if manifest["rank"] == identity.rank]
            if taken is None or not any(clock[0]["unix_ns"] >= began for clock in clocks):
                return None
            deadline = time.monotonic() + _OTHER_RANKS_WAIT_S
            while time.monotonic() < deadline and any(
                manifest["state"] == "running" for manifest in rank_manifests(taken)
            ):
                time.sleep(0.2)
            return taken

        return Ended(status, report)

    def _tool_in_front(self, plan: Plan, folder: Path, tool: ToolRequest) -> Ended:
        """nsys or ncu around a command that no launcher divides into ranks: it is rank 0."""
        identity = detect(os.environ, plan.identity)
        if not parse_selector(plan.ranks).selects(identity):
            remove_if_empty(folder)
            return self._run_plainly(
                CaptureError(
                    f"--ranks {plan.ranks} does not select rank {identity.rank}; the job runs without {plan.tool}"
                )
            )
        ended = run_rank(plan, identity, tool, self.output)
        if self.dry_run:
            return Ended(ended.status)

        def report() -> Path:
            ended.collect()
            return self._report(folder, ended.status)

        return Ended(ended.status, report)

    def _open_run(self) -> tuple[Path, str]:
        """Take the run folder for this job, unless another process has done so."""
        plan = self.plan
        folder, job = self._name_run()
        if self.inserted or self.dry_run:
            return folder, job
        opened, _ = open_run(folder, run_manifest(plan, job), force=plan.force, for_group=plan.group_readable)
        if opened != folder:
            self.output.message(
                f"{short_path(folder)} holds another job: this one goes to {short_path(opened)} "
                "(-f replaces the other)"
            )
        return opened, job

    def _name_run(self) -> tuple[Path, str]:
        plan = self.plan
        return name_run(os.environ, detect(os.environ, plan.identity), plan.command, plan.output, plan.job)

    def _with_us_inserted(self, folder: Path, job: str, front: Front) -> list[str] | None:
        """The launcher's command with `rankscope profile` before its program; None when it is no launcher."""
        words = [*self.options, "-o", str(folder), "--job", job, *(["-q"] if self.plan.quiet else [])]
        words += [] if self.dry_run else ["--front", front.text]
        inserted = [*own_command(), "profile", *words, "--inner", "--"]
        return rewrite(self.plan.command, inserted, os.environ)

    def _run_plainly(self, error: Exception, who: str = "") -> Ended:
        """Say why the command is not captured, and become it."""
        error = system_error(error) if isinstance(error, OSError) else error
        text = f"{error}" if isinstance(error, RankscopeError) else f"{type(error).__name__}: {error}"
        outcome = "" if "job runs without" in text else "\n  The job runs without being captured."
        self.output.message(f"{who}{text}{outcome}")
        if self.dry_run:
            self.output.line(shlex.join(self.plan.command))
            return _SHOWN
        replace_process(self.plan.command, os.environ)
        return Ended(1)

    def _pass_signal_on(self, folder: Path) -> None:
        """--on-signal sent to the command in front goes to the captured ranks of this host."""
        number = requested_signal(self.plan)
        host = os.uname().nodename
        for manifest in rank_manifests(folder):
            if number is not None and manifest.get("host") == host and manifest.get("state") == "running":
                try:
                    os.kill(int(manifest["pid"]), number)
                except (ProcessLookupError, PermissionError) as error:
                    process = f"rank {manifest['rank']} (process {manifest['pid']})"
                    self.output.message(f"{process} cannot be reached: {error.strerror}")

    def _report(self, folder: Path, status: int) -> Path:
        """The summary; a folder that does not answer is not waited for."""
        texts: list[str | None] = []
        if not within_seconds(lambda: texts.append(summary(folder, self.plan, status))):
            texts.append(f"{short_path(folder)} does not answer: what was captured cannot be summed up")
        for text in texts:
            if text is not None:
                self.output.message(text)
        return folder


def _capturing_environment(plan: Plan) -> dict[str, str]:
    """The environment that makes the Python processes of the command capture themselves."""
    direct = is_python(Path(plan.command[0]).name)
    return bootstrap_environment(os.environ, plan._replace(direct=direct).to_json(), PLAN_VARIABLE)
