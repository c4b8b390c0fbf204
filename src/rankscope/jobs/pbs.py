"""PBS Pro and OpenPBS: directives, qsub, and the state of a job."""

from __future__ import annotations

import re

from rankscope.errors import UsageError
from rankscope.jobs.launchers import once_per_node
from rankscope.jobs.scheduler import Scheduler, State, ask
from rankscope.jobs.script import Dialect
from rankscope.jobs.spec import Spec


def dialect(spec: Spec) -> Dialect:
    if spec.gres or spec.gpus_per_node or spec.constraint:
        raise UsageError(
            "--gres, --gpus-per-node and --constraint are Slurm's",
            why="In PBS the nodes and their devices are part of select.",
            hint="Name them in the site's file: select = 'ngpus=4', or with `rankscope job pbs --select ngpus=4`.",
        )
    chunk = spec.select or f"mpiprocs={spec.ppn}"
    outputs, redirection = _outputs(spec)
    lines = [
        f"-N {spec.name}",
        f"-l select={spec.nodes}:{chunk}",
        f"-l place={spec.place or 'scatter'}",
        f"-l walltime={spec.walltime}",
        *([f"-l filesystems={spec.filesystems}"] if spec.filesystems else []),
        *([f"-q {spec.queue}"] if spec.queue else []),
        *([f"-A {spec.account}"] if spec.account else []),
        *([f"-k {spec.keep}"] if spec.keep else []),
        *outputs,
        *spec.directives,
    ]
    launcher = " ".join(word for line in once_per_node(spec.launcher_outer, 1) for word in line)
    return Dialect(
        directives=tuple(f"#PBS {line}" for line in lines),
        job_id="${PBS_JOBID:?this script is for qsub}",
        submit_folder="${PBS_O_WORKDIR:-.}",
        # Rank 0 runs on the first line's node; sorting would move it. The file may be out of sight in a container.
        first_node='if [ -r "${PBS_NODEFILE:-}" ]; then head -n 1 "$PBS_NODEFILE"; '
        f"else {launcher} hostname; fi",
        ends_by_itself=False,
        redirection=redirection,
    )


def _outputs(spec: Spec) -> tuple[list[str], str]:
    """The directives for the output files, and a redirection in the script.

    PBS names the files NAME.oID and NAME.eID, in the folder of submission or in one that -o and -e name. It does not
    put the id into any other name, so the script itself writes to a path with %j.
    """
    given = {"o": spec.stdout, "e": spec.stderr}
    joined = spec.stdout is not None and spec.stdout == spec.stderr
    directives = ["-j oe"] if joined else []
    redirections, folders = [], []
    for letter, sign in (("o", ">"), ("e", "2>")):
        path = given[letter]
        if path is None or (joined and letter == "e"):
            continue
        if "%" not in path:
            directives.append(f"-{letter} {path}")
            continue
        if "%" in path.replace("%j", ""):
            raise UsageError(
                f"{path} holds a % that is not %j",
                why="%j is the job's id; PBS has no other replacement.",
                hint=f"For example: --{'stdout' if letter == 'o' else 'stderr'} logs/{spec.name}-%j.out",
            )
        text = path.replace("%j", "${job%%.*}")
        folders += [f'mkdir -p "{text.rpartition("/")[0]}"'] if "/" in text.lstrip("/") else []
        redirections.append(f'{sign}"{text}"' + (" 2>&1" if joined else ""))
    if not redirections:
        return directives, ""
    if joined:
        directives.remove("-j oe")  # the script joins them
    lines = [*dict.fromkeys(folders), f"exec {' '.join(redirections)}"]
    return directives, "\n".join(lines)


def _job_id(answer: str) -> str | None:
    words = answer.split()
    return words[-1] if words and re.match(r"\d", words[-1]) else None


def state_of(job: str) -> State:
    """-x also shows ended jobs, where the site keeps their history; Torque's qstat has no -x."""
    answer = ask(["qstat", "-x", "-f", job]) or ask(["qstat", "-f", job]) or ""
    fields = {name.lower(): value for name, value in re.findall(r"(?m)^\s*(\w+)\s*=\s*(.*?)\s*$", answer)}
    letter = fields.get("job_state")
    if letter is None:
        return State("unknown", True, None)
    word = _STATES.get(letter, letter)
    code = fields.get("exit_status", "")
    ended = letter in ("F", "C", "X")
    return State(word, ended, int(code) if ended and re.fullmatch(r"-?\d+", code) else None)


_STATES = {
    "Q": "queued",
    "H": "held",
    "R": "running",
    "B": "running",
    "E": "ending",
    "F": "finished",
    "C": "completed",
    "S": "suspended",
    "W": "waiting",
    "T": "moving",
    "X": "expired",
}

SCHEDULER = Scheduler(
    name="pbs",
    title="PBS",
    submit=("qsub",),
    delete=("qdel",),
    terminate=("qsig", "-s", "SIGTERM"),
    job_id=_job_id,
    state=state_of,
    dialect=dialect,
    launcher="mpich",
)
