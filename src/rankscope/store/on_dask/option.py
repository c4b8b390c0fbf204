"""Where a Dask cluster is, as a user writes it. Imports no Dask: every command that reads traces takes this option."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.errors import UsageError
from rankscope.records import dataclass

LOCAL = "local"
BATCH = ("slurm", "pbs")
ADDRESSES = ("tcp://", "tls://")


@dataclass(frozen=True)
class DaskCluster:
    """A Dask cluster to read on."""

    where: str
    """local, slurm, pbs, the address of a scheduler, or the path of its file."""
    options: tuple[tuple[str, str], ...] = ()
    """With slurm and pbs: names and values of options, as `rankscope job` spells them."""

    @property
    def is_local(self) -> bool:
        """Whether its workers are processes of this machine."""
        return self.where == LOCAL


def parse_dask(where: str, options: Sequence[str] = ()) -> DaskCluster:
    """The cluster of --dask WHERE and --dask-option KEY=VALUE."""
    if where not in (LOCAL, *BATCH) and not where.startswith(ADDRESSES) and not where.endswith(".json"):
        raise UsageError(
            f"--dask {where} is not a place",
            why="It is local, slurm, pbs, the address of a Dask scheduler, or the .json file that one has written.",
            hint="For example: --dask local, --dask tcp://node7:8786, --dask scheduler.json",
        )
    pairs = []
    for text in options:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(
                f"--dask-option {text} has no value",
                why="It is written as KEY=VALUE.",
                hint="For example: --dask-option nodes=4",
            )
        pairs.append((key, value))
    if pairs and where not in BATCH:
        raise UsageError(
            f"--dask-option {pairs[0][0]}=… is for --dask slurm and --dask pbs",
            why=f"With --dask {where} no job is submitted.",
            hint="Leave it out." if where != LOCAL else "The number of processes is --jobs N.",
        )
    return DaskCluster(where, tuple(pairs))
