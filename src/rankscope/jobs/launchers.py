"""The command lines of the launchers: number of nodes and ranks, environment, labelled output."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rankscope.jobs.spec import Step

# Lists of words, one for each line of the script; a word is quoted unless it is a Shell.
Lines = list[list[str]]


class Shell(str):
    """Text that the shell expands: it is not quoted."""


def once_per_node(kind: str, nodes: int) -> Lines:
    """The launcher's words for one process on every node."""
    step = Step(words=(), nodes=nodes, ppn=1, labelled=False, exported=("PATH",))
    return LAUNCHERS[kind](step, {}, None)


def _srun(step: Step, env: Mapping[str, Shell], cpu_bind: str | None) -> Lines:
    bind = [f"--cpu-bind={cpu_bind}"] if cpu_bind else []
    lines = [
        ["srun", f"--nodes={step.nodes}", f"--ntasks={step.ranks}", f"--ntasks-per-node={step.ppn}", *bind]
    ]
    if env:
        pairs = ",".join(f"{name}={value}" for name, value in env.items())
        # without --unbuffered, which labels parts of lines
        label = ["--label"] if step.labelled else []
        lines.append([*label, Shell(f'--export="ALL,{pairs}"')])
    return lines


def _pals(step: Step, env: Mapping[str, Shell], cpu_bind: str | None) -> Lines:
    lines = [["mpiexec", "-n", str(step.ranks), "-ppn", str(step.ppn)]]
    lines[0] += ["-l", "--line-buffer"] if step.labelled else []
    lines[0] += [f"--cpu-bind={cpu_bind}"] if cpu_bind else []
    lines += [["--env", Shell(f'{name}="{value}"')] for name, value in env.items()]
    return lines


def _mpich(step: Step, env: Mapping[str, Shell], cpu_bind: str | None) -> Lines:
    lines = [["mpiexec.hydra", "-n", str(step.ranks), "-ppn", str(step.ppn)]]
    lines[0] += ["-l"] if step.labelled else []
    lines[0] += ["-bind-to", cpu_bind] if cpu_bind else []
    lines += [["-genv", name, Shell(f'"{value}"')] for name, value in env.items()]
    return lines


def _openmpi(step: Step, env: Mapping[str, Shell], cpu_bind: str | None) -> Lines:
    lines = [["mpirun", "-n", str(step.ranks), "--map-by", f"ppr:{step.ppn}:node"]]
    lines[0] += ["--tag-output"] if step.labelled else []
    lines[0] += ["--bind-to", cpu_bind] if cpu_bind else []
    # The other launchers pass on the script's environment; Open MPI passes only the variables named with -x.
    lines += [["-x", Shell(f'{name}="{value}"')] for name, value in env.items()]
    lines += [[word for name in step.exported for word in ("-x", name)]] if step.exported else []
    return lines


# The launcher's part of a command line, one list of words for each line of the script.
LAUNCHERS: dict[str, Callable[[Step, Mapping[str, Shell], str | None], Lines]] = {
    "srun": _srun,
    "pals": _pals,
    "mpich": _mpich,
    "openmpi": _openmpi,
}


def torchrun(step: Step) -> Lines:
    """The torchrun command of each node; its rendezvous is on the first node."""
    return [
        ["torchrun", f"--nnodes={step.nodes}", f"--nproc-per-node={step.ppn}", "--no-python"],
        [
            "--rdzv-backend=c10d",
            Shell('--rdzv-id="$job"'),
            Shell('--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'),
        ],
    ]
