"""Slurm: directives, sbatch, and the state of a job."""

from __future__ import annotations

import re

from rankscope.jobs.scheduler import Scheduler, State, ask
from rankscope.jobs.script import Dialect
from rankscope.jobs.spec import Spec

_NOT_ENDED = frozenset(
    ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING")
)


def dialect(spec: Spec) -> Dialect:
    stdout, stderr = (
        f"{path or ''}{spec.name}-%j.{ending}" if not path or path.endswith("/") else path
        for path, ending in ((spec.stdout, "out"), (spec.stderr, "err"))
    )
    asked = {
        "job-name": spec.name,
        "nodes": spec.nodes,
        "ntasks-per-node": spec.ppn,
        "time": spec.walltime,
        "partition": spec.queue,
        "account": spec.account,
        "constraint": spec.constraint,
        "licenses": spec.filesystems and spec.filesystems.replace(":", ","),
        "gres": spec.gres,
        "gpus-per-node": spec.gpus_per_node,
        "output": stdout,
        "error": stderr if stderr != stdout else None,  # Slurm then writes both to one file
        # to the script alone, which forwards it to the ranks and then has time to collect their files
        "signal": f"B:TERM@{spec.lead_s}",
    }
    return Dialect(
        directives=(
            *(f"#SBATCH --{name}={value}" for name, value in asked.items() if value is not None),
            *(f"#SBATCH {directive}" for directive in spec.directives),
        ),
        job_id="${SLURM_JOB_ID:?this script is for sbatch}",
        submit_folder="${SLURM_SUBMIT_DIR:-.}",
        first_node='scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1',
        ends_by_itself=True,
    )


def _job_id(answer: str) -> str | None:
    match = re.match(r"(\d+)", answer)
    return match[1] if match else None


def state_of(job: str) -> State:
    """From the controller, which keeps a job for some minutes after its end; else from the accounting."""
    answer = ask(["scontrol", "--oneliner", "show", "job", job])
    fields = dict(re.findall(r"(?:^|\s)(JobState|ExitCode|Reason)=(\S*)", answer or ""))
    if not fields:
        answer = ask(["sacct", "-X", "-n", "-P", "-j", job, "-o", "State,ExitCode"]) or ""
        state, _, code = answer.strip().partition("\n")[0].partition("|")
        fields = {"JobState": state.split()[0], "ExitCode": code} if state else {}
    if not fields:
        return State("unknown", True, None)
    word = fields["JobState"]
    if word in _NOT_ENDED:
        return State(word.lower(), False, None)
    parts = [int(part) if part.isdecimal() else 0 for part in fields.get("ExitCode", "").split(":")]
    exit_code, signal = [*parts, 0, 0][:2]  # Slurm writes CODE:SIGNAL
    return State(word.lower(), True, 128 + signal if signal else exit_code or int(word != "COMPLETED"))


SCHEDULER = Scheduler(
    name="slurm",
    title="Slurm",
    submit=("sbatch", "--parsable"),
    delete=("scancel",),
    terminate=("scancel", "--signal=TERM", "--batch"),
    job_id=_job_id,
    state=state_of,
    dialect=dialect,
    launcher="srun",
)
