"""PBS Pro and OpenPBS: directives, qsub, and the state of a job."""

from __future__ import annotations

import re

from rankscope.jobs.scheduler import Scheduler, State, ask
from rankscope.jobs.script import Dialect
from rankscope.jobs.spec import Spec


def dialect(spec: Spec) -> Dialect:
    chunk = spec.select or f"mpiprocs={spec.ppn}"
    lines = [
        f"-N {spec.name}",
        f"-l select={spec.nodes}:{chunk}",
        f"-l place={spec.place or 'scatter'}",
        f"-l walltime={spec.walltime}",
        *([f"-l filesystems={spec.filesystems}"] if spec.filesystems else []),
        *([f"-q {spec.queue}"] if spec.queue else []),
        *([f"-A {spec.account}"] if spec.account else []),
        *([f"-k {spec.keep}"] if spec.keep else []),
        f"-o {spec.name}.out",
        f"-e {spec.name}.err",
    ]
    return Dialect(
        directives=tuple(f"#PBS {line}" for line in lines),
        job_id="${PBS_JOBID:?this script is for qsub}",
        submit_folder="${PBS_O_WORKDIR:-.}",
        first_node='sort -u "$PBS_NODEFILE" | head -n 1',
        ends_by_itself=False,
    )


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
    "E": "ending",
    "F": "finished",
    "C": "completed",
    "S": "suspended",
    "W": "waiting",
    "T": "moving",
    "B": "running",
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
