"""The job's id and run folder: the same on every rank without communication, so no time stamp and nothing random."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankscope.capture.process_state import process_state
from rankscope.capture.rank import RANK_VARIABLES, SINGLE, Identity
from rankscope.capture.run_folder import expand
from rankscope.errors import CaptureError

_PYTHON = re.compile(r"python[0-9.]*$")


def job_id(env: Mapping[str, str], identity: Identity) -> str:
    """An id that no other job has, made of the launcher's own ids.

    A batch job may run several steps, so the step's id is added where there is one.
    """
    parts = _scheduler_id(env, identity)
    run_id = env.get("TORCHELASTIC_RUN_ID", "")
    if run_id and run_id != "none":  # torchrun writes "none" when no id was given
        parts.append(run_id)
    step = env.get("PALS_APID") or env.get("PMIX_NAMESPACE")
    if step:
        parts.append(step)
    if parts:
        return _clean("-".join(parts))
    if identity.one_node or identity.source == SINGLE:
        return local_job_id(env, identity)
    if env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        return _clean(f"{env['MASTER_ADDR']}-{env['MASTER_PORT']}")
    raise CaptureError(
        "cannot tell which job this is: -o DIR is needed",
        why=f"{identity.source} runs on several nodes and sets no job id, so ranks could choose different folders.",
        hint="Name it: rankscope profile -o DIR …, or put rankscope profile in front of the launcher.",
    )


def local_job_id(env: Mapping[str, str], identity: Identity) -> str:
    """On one node: the launcher's pid and start time. The launcher is the nearest ancestor without a rank."""
    pid = os.getppid()
    if identity.source == SINGLE:
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    variable = RANK_VARIABLES.get(identity.source)
    while pid > 1 and variable and _environ_has(pid, variable) and (ancestor := process_state(pid)):
        pid = ancestor.parent
    launcher = process_state(pid)
    return f"{pid}-{launcher.started if launcher else 0}"


def trainer_of(env: Mapping[str, str]) -> str | None:
    """What the ranks of one trainer have in common, where a job has several; None where the launcher does not tell."""
    run_id = env.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        return run_id
    if env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        return f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    return None


def name_run(
    env: Mapping[str, str], identity: Identity, command: Sequence[str], output: str | None, job: str | None
) -> tuple[Path, str]:
    """The run's folder and job id, from what was given or else from the launcher's ids."""
    if output is not None:
        folder = Path.cwd() / expand(output, env)
        try:
            return folder, job or job_id(env, identity)
        except CaptureError:
            # All ranks have the same folder name, so it can serve as the id.
            return folder, _clean(folder.name)
    job = job or job_id(env, identity)
    return Path.cwd() / default_folder(command, job), job


def default_folder(command: Sequence[str], job: str) -> str:
    """``rankscope-<script>-<job id>``, in the working directory."""
    return f"rankscope-{script_name(command)}-{job}"


def script_name(command: Sequence[str]) -> str:
    """The training script's short name: the .py file or module in the command, else the program."""
    words = list(command)
    for index, word in enumerate(words):
        if word.endswith(".py"):
            return _clean(Path(word).stem)
        if word == "-m" and index and _PYTHON.search(words[index - 1]) and index + 1 < len(words):
            module = words[index + 1]
            if module != "torch.distributed.run":
                return _clean(module)
    return _clean(Path(words[0]).name) if words else "job"


def is_python(word: str) -> bool:
    """Whether a command's first word is a Python interpreter."""
    return bool(_PYTHON.search(word))


def _scheduler_id(env: Mapping[str, str], identity: Identity) -> list[str]:
    if env.get("SLURM_JOB_ID"):
        step = env.get("SLURM_STEP_ID") if identity.source != SINGLE else None
        parts = [env["SLURM_JOB_ID"], step] if step else [env["SLURM_JOB_ID"]]
        # Without a step id (mpiexec inside sbatch, or a plain command) two commands of a job would share its id.
        return parts if step else [*parts, *_local_part(env, identity)]
    if env.get("PBS_JOBID"):
        return [env["PBS_JOBID"].partition(".")[0], *_local_part(env, identity)]
    return []


def _local_part(env: Mapping[str, str], identity: Identity) -> list[str]:
    has_step_id = env.get("PALS_APID") or env.get("PMIX_NAMESPACE")
    local = identity.one_node or identity.source == SINGLE
    return [local_job_id(env, identity)] if local and not has_step_id else []


def _clean(text: str) -> str:
    """Only characters that are safe in a file name, at most 80."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:80] or "job"


def _environ_has(pid: int, variable: str) -> bool:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(line.startswith(variable.encode() + b"=") for line in text.split(b"\0"))
