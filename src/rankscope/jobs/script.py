"""The script of a job: directives, then the part that is the same for all schedulers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rankscope.capture.run_folder import RUN_MANIFEST
from rankscope.jobs.launchers import LAUNCHERS, Lines, Shell, once_per_node, torchrun
from rankscope.jobs.spec import RUN, Spec, Step

EXIT_CODE = ".job-exit-code"
"""A file in the run folder with the job's id and exit code, for schedulers that do not report exit codes."""


class Dialect(NamedTuple):
    """The parts of a script that differ between schedulers, as shell text."""

    directives: tuple[str, ...]
    job_id: str
    submit_folder: str
    first_node: str
    ends_by_itself: bool
    """Whether the scheduler sends TERM before the walltime is over; if not, the script uses timeout."""
    redirection: str = ""
    """Commands that send the script's output to files with the job's id in their names."""


_STEP_FUNCTIONS = """\
# On TERM (walltime, or the job is cancelled): the ranks write what they have recorded, then the script continues.
launcher=
ended=
signal_ranks() {
    ended=TERM
    [ -z "$launcher" ] || {signal}
}
trap signal_ranks TERM

run_step() {
    "$@" &
    launcher=$!
    wait "$launcher"
    status=$?
    # A trap interrupts `wait`; the launcher is still running.
    while kill -0 "$launcher" 2>/dev/null; do
        wait "$launcher"
        status=$?
    done
    launcher=
}
"""

_OUT_OF_TIME = """\
    [ "$status" -ne 124 ] || ended=TERM
    launcher=
}"""

_COLLECT = """\
# Copy the files from every node's disk to the run folder, all nodes at once, after a failure too.
if {each} \\
    rankscope job collect "$scratch/run" "$run"; then
    {each} rm -rf "$scratch"
else
    echo "rankscope: not all files could be copied; they are still in $scratch on the nodes" >&2
fi
"""


def render(spec: Spec, dialect: Dialect) -> str:
    parts = [
        "\n".join([shebang(spec), *dialect.directives]) + "\n",
        _surroundings(spec, dialect),
        _places(spec, dialect),
        _step_function(spec, dialect),
        *(_step(spec, step, dialect) for step in spec.steps),
        _ending(spec),
    ]
    return "\n".join(parts)


def shebang(spec: Spec) -> str:
    return "#!/bin/bash -l" if spec.login else "#!/bin/bash"


def preamble(spec: Spec, dialect: Dialect) -> list[str]:
    """The lines after the directives: the folder, the output files, modules and environments, variables."""
    lines = ["set -u", f'cd "{dialect.submit_folder}" || exit 1', f'job="{dialect.job_id}"']
    lines += [dialect.redirection] if dialect.redirection else []
    loads = [
        f"module {shlex.join(words if words[0] in ('use', 'load', 'unload', 'swap') else ['load', *words])}"
        for words in (module.split() for module in spec.modules)
    ]
    begin = [*loads]
    begin += [f"conda activate {shlex.quote(spec.conda)}"] if spec.conda else []
    begin += [f". {shlex.quote(spec.venv + '/bin/activate')}"] if spec.venv else []
    if begin:
        # module, conda and activate scripts may use unset variables
        lines += ["", "set +u", *begin, "set -u"]
    lines += ["", *(f"export {name}={shlex.quote(value)}" for name, value in spec.env.items())]
    if "PYTHONUNBUFFERED" not in spec.env:  # so that output is not lost when a rank is killed
        lines += ["export PYTHONUNBUFFERED=1"]
    return lines


def _surroundings(spec: Spec, dialect: Dialect) -> str:
    lines = preamble(spec, dialect)
    if "MASTER_ADDR" not in spec.env:
        lines += [f"MASTER_ADDR=$({dialect.first_node})", "export MASTER_ADDR"]
    if "MASTER_PORT" not in spec.env:
        lines += ["export MASTER_PORT=$((20000 + ${job%%[!0-9]*} % 20000))"]
    if spec.uses_rankscope:
        lines += [
            "",
            "if ! command -v rankscope >/dev/null; then",
            '    echo "rankscope: not on PATH on $(hostname); give its environment: --venv, --conda, --modules" >&2',
            "    exit 1",
            "fi",
        ]
    return "\n".join(lines) + "\n"


def _step_function(spec: Spec, dialect: Dialect) -> str:
    # On TERM srun kills its ranks at once; the other launchers forward it.
    signal = 'scancel --signal=TERM "$job"' if spec.launcher_outer == "srun" else 'kill -TERM "$launcher"'
    text = _STEP_FUNCTIONS.replace("{signal}", signal)
    return text if dialect.ends_by_itself else text.replace("    launcher=\n}", _OUT_OF_TIME)


def _places(spec: Spec, dialect: Dialect) -> str:
    default = f"rankscope-{spec.name}-"
    run = folder_text(spec.run) if spec.run else f'{shlex.quote(default)}"$job"'
    each = _words(once_per_node(spec.launcher_outer, spec.nodes))
    lines = [
        "# The run folder, and a folder on each node's disk, where the profiler writes while the job runs.",
        f"run={run}",
        'case $run in /*) ;; *) run="$PWD/$run" ;; esac',
        f'scratch="{spec.tmpdir}/rankscope-${{USER:-$(id -un)}}-$job"',
    ]
    marker = spec.steps[0].output or RUN_MANIFEST
    if spec.force:
        lines += [f'rm -f -- "$run"/rank-* "$run"/node-* "$run"/point-*.json "$run/{RUN_MANIFEST}"']
        lines += ['rm -rf -- "$run"/point-[0-9][0-9][0-9]'] if spec.steps[0].folder else []
    else:
        lines += [
            f'if [ -e "$run/{marker}" ]; then',
            '    echo "rankscope: $run holds another run; name another folder with -o DIR, or add -f" >&2',
            "    exit 1",
            "fi",
        ]
    lines += [f'{each} mkdir -p "$scratch/tmp" || exit 1', 'mkdir -p "$run" || exit 1']
    return "\n".join(lines) + "\n"


def _step(spec: Spec, step: Step, dialect: Dialect) -> str:
    env = {"TMPDIR": Shell("$scratch/tmp")}
    launch = LAUNCHERS[spec.launcher_outer]
    exported = dict.fromkeys(("PATH", "PYTHONUNBUFFERED", "MASTER_ADDR", "MASTER_PORT", *spec.env))
    step = replace(step, exported=tuple(exported), labelled=step.output is None)
    lines: Lines = [["run_step"]]
    if not dialect.ends_by_itself:
        # PBS waits ten seconds from TERM to KILL, too short for many ranks, so `timeout` sends TERM earlier.
        left = Shell(f"$(({spec.walltime_s - spec.lead_s} - SECONDS))")  # SECONDS: since the script started
        lines[0] += ["timeout", "--foreground", "--signal=TERM", left]
    folder = Shell(f'"$scratch/run{"/" if step.folder else ""}{step.folder}"')
    profiler: Lines = [["rankscope", "profile", "-o", folder, *spec.profile_words, "--"]]
    if not step.profiled:
        profiler = []
    if spec.launcher == "torchrun":
        lines += launch(replace(step, ppn=1), env, spec.cpu_bind)
        # --per-node: one report around torchrun, with all its ranks
        around = "--per-node" in spec.profile_words
        lines += [*profiler, *torchrun(step)] if around else [*torchrun(step), *profiler]
    else:
        lines += [*launch(step, env, spec.cpu_bind), *profiler]
    lines += [list(step.words)]
    text = " \\\n    ".join(_words([line]) for line in lines)
    redirect = f' \\\n    >"$run/"{shlex.quote(step.output)}' if step.output else ""
    if len(spec.steps) == 1:
        return text + redirect + "\n"
    return f'if [ -z "$ended" ]; then\n    {text}{redirect}\n    [ "$status" -eq 0 ] || failed=$status\nfi\n'


def _ending(spec: Spec) -> str:
    each = _words(once_per_node(spec.launcher_outer, spec.nodes))
    run = Shell('"$run"')
    commands = [[run if word == RUN else word for word in words] for words in spec.summaries]
    summaries = [f"{_quoted(words)} || true" for words in commands]
    status = '"$status"' if len(spec.steps) == 1 else '"${failed:-0}"'
    early = "the job was ended early" + ("; the recording may be partial" if spec.uses_rankscope else "")
    told = f'[ -z "$ended" ] || echo "rankscope: {early}" >&2'
    recorded = [_COLLECT.replace("{each}", each), told, 'echo "rankscope: the run is in $run"', *summaries]
    lines = [
        *(recorded if spec.uses_rankscope else [f'{each} rm -rf "$scratch"', told]),
        f'echo "$job" {status} >"$run/{EXIT_CODE}"',
        f"exit {status}",
    ]
    return "\n".join(lines) + "\n"


def folder_text(text: str) -> str:
    """A path with %q{VAR} in it, as shell text."""
    parts = re.split(r"%q\{(\w+)\}", text)
    return "".join(
        f'"${{{part}}}"' if index % 2 else shlex.quote(part) if part else ""
        for index, part in enumerate(parts)
    )


def _words(lines: Lines) -> str:
    return " ".join(_quoted(line) for line in lines)


def _quoted(words: Sequence[str]) -> str:
    return " ".join(word if isinstance(word, Shell) else shlex.quote(word) for word in words)
