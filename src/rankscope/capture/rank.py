"""The rank of this process and its place in the job, from the variables that its launcher sets.

Every launcher family has its own names for the same five values. All five are taken from one family, the first in
the table that matches: mixing families gives wrong ranks (under mpiexec inside sbatch, SLURM_PROCID is 0,0,1,1
beside the right PMI_RANK). A missing variable means unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rankscope.errors import UsageError


class Identity(NamedTuple):
    """One process's place in the job; None where the launcher does not set the value."""

    rank: int
    local_rank: int | None
    world_size: int | None
    local_size: int | None
    node: int | None
    source: str
    node_derived: bool = False

    @property
    def one_node(self) -> bool:
        return self.world_size is not None and self.world_size == self.local_size


class Family(NamedTuple):
    """The variables of one launcher; A|B is the first that is set. It matches only if all of ``gate`` are set."""

    name: str
    rank: str
    local_rank: str = ""
    world_size: str = ""
    local_size: str = ""
    node: str = ""
    also_set: str = ""

    @property
    def gate(self) -> list[str]:
        return [self.rank, *filter(None, self.also_set.split("|"))]


SINGLE = "single process"
OPTION = "--rank"
RAY_TRAIN = "Ray Train"
UNNUMBERED = "first free rank"
"""Of an actor that has joined no process group: it takes its number with its first step."""

# In order of precedence, with the fields of Family.
# RANK: deepspeed, and scripts that set the three by hand. RANK alone is a pod's number in a PyTorchJob, not a rank.
# OMPI_COMM_WORLD_NODE_RANK is missing on purpose: it is the process's number on its node.
# SLURM_PROCID=0 is set in the body of an sbatch script too; only a step (srun) has SLURM_STEP_ID.
_VARIABLES = """\
torchrun RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK TORCHELASTIC_RUN_ID|LOCAL_RANK|WORLD_SIZE
RANK RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE|LOCAL_SIZE GROUP_RANK|CROSS_RANK LOCAL_RANK|WORLD_SIZE
OpenMPI OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE
PALS PALS_RANKID PALS_LOCAL_RANKID PMI_SIZE PALS_LOCAL_SIZE PALS_NODEID
PMI PMI_RANK MPI_LOCALRANKID PMI_SIZE MPI_LOCALNRANKS
MVAPICH2 MV2_COMM_WORLD_RANK MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_SIZE
jsrun JSM_NAMESPACE_RANK JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_SIZE
Flux FLUX_TASK_RANK FLUX_TASK_LOCAL_ID FLUX_JOB_SIZE
aprun ALPS_APP_PE
Slurm SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_GTIDS SLURM_NODEID SLURM_STEP_ID
"""
FAMILIES = tuple(Family(*line.split()) for line in _VARIABLES.splitlines())

RANK_VARIABLES = {family.name: family.rank for family in FAMILIES}
# Lists of task ids; the value is their length.
_COUNTED = frozenset({"SLURM_GTIDS"})


def parse_identity(given: Mapping[str, str | None], env: Mapping[str, str]) -> dict[str, int]:
    """The numbers of --rank, --local-rank, --node-rank and --world-size, by field; ``%q{VAR}`` is replaced."""
    identity = {}
    for name, text in given.items():
        if text is None:
            continue
        value = env.get(text[3:-1], text) if text.startswith("%q{") and text.endswith("}") else text
        if not value.isdecimal():
            raise UsageError(
                f"'{text}' is not a rank, a size or a variable that is set", hint="Give a number."
            )
        identity[name] = int(value)
    if identity and "rank" not in identity:
        raise UsageError("--local-rank, --node-rank and --world-size need --rank", hint="Give --rank N too.")
    return identity


def detect(env: Mapping[str, str], explicit: Mapping[str, int] | None = None) -> Identity:
    """This process's identity: from the options, else the first family that matches, else a job of one."""
    if explicit and "rank" in explicit:
        local_rank, world, node = map(explicit.get, ("local_rank", "world_size", "node"))
        return _with_node(Identity(explicit["rank"], local_rank, world, None, node, OPTION))
    for family in FAMILIES:
        identity = _from_family(family, env)
        if identity is not None:
            return _with_node(identity)
    return Identity(0, 0, 1, 1, 0, SINGLE)


def disagreements(env: Mapping[str, str], chosen: Identity) -> list[str]:
    """A message for each other family that gives a different rank.

    Below torchrun or Ray this is normal (the outer launcher's variables describe the agent), so there is no message.
    """
    if chosen.source in (FAMILIES[0].name, SINGLE, UNNUMBERED, RAY_TRAIN):
        return []
    others = filter(None, (_from_family(family, env) for family in FAMILIES))
    return [
        f"{chosen.source} gives rank {chosen.rank}, but {RANK_VARIABLES[other.source]} is {other.rank}; "
        f"{chosen.source}'s rank is used"
        for other in others
        if other.source != chosen.source and other.rank != chosen.rank
    ]


def _from_family(family: Family, env: Mapping[str, str]) -> Identity | None:
    if not all(env.get(name) for name in family.gate) or (rank := _number(family.rank, env)) is None:
        return None
    names = (family.local_rank, family.world_size, family.local_size, family.node)
    local_rank, world, local, node = (_number(name, env) for name in names)
    return Identity(rank, local_rank, world, local, node, family.name)


def _number(names: str, env: Mapping[str, str]) -> int | None:
    for name in names.split("|"):
        value = env.get(name, "")
        if value and name in _COUNTED:
            return len(value.split(","))
        if value.isdecimal():
            return int(value)
    return None


def _with_node(identity: Identity) -> Identity:
    """Derive the node where the launcher does not set it.

    MPI launchers fill node after node by default; one rank can check that against its own numbers only.
    """
    rank, local_rank, world, local, node, *_ = identity
    if node is not None or None in (local_rank, world, local):
        return identity
    if local and world and world % local == 0 and rank % local == local_rank:
        return identity._replace(node=rank // local, node_derived=local != world)
    return identity
