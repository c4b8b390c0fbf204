"""Advice that fits the program: its framework, its device, and what it already does."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.names import sql_names, vocabulary
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.records import dataclass
from rankscope.timeline.run import Run

Framework = Literal["torch", "jax", "triton", "nsys", ""]
_FRAMEWORKS: dict[str, Framework] = {"kineto": "torch", "ascend": "torch", "xla": "jax", "nsys": "nsys"}
"""By reader. A report of nsys does not tell which framework it recorded."""


@once_per_run
def framework(run: Run) -> Framework:
    """Whose functions and options advice may name: those of the framework, or of the profiler, of most files."""
    files = Counter[Framework](
        "triton"
        if entry.manifest["header"].get("profiler") == "proton"
        else _FRAMEWORKS.get(entry.format, "")
        for entry in run.timelines
    )
    return max(files, key=lambda name: (name != "", files[name]), default="")


@dataclass(frozen=True)
class RankProgram:
    """What the program of one rank does."""

    uses_graphs: bool
    """Kernels are launched as CUDA (or HIP) graphs."""
    is_compiled: bool
    """torch.compile made some of the code."""


@kept_per_rank("program", RankProgram, any_window=True)
def _programs(run: Run, scope: Scope) -> dict[int, RankProgram]:
    graphs = [name for name in vocabulary(run, *LAUNCH_CATEGORIES) if "GraphLaunch" in name]
    compiled = [name for name in vocabulary(run, "cpu_op", "user_annotation") if name.startswith(_COMPILED)]
    rows = []
    if graphs or compiled:
        rows = run.rows(
            f"SELECT DISTINCT rank, name IN ({sql_names(graphs)}) FROM slices "
            f"WHERE name IN ({sql_names([*graphs, *compiled])}) AND {scope.where()}"
        )
    return {
        rank: RankProgram((rank, True) in rows, (rank, False) in rows)
        for rank in dict.fromkeys(rank for rank, _ in rows)
    }


def together(run: Run) -> list[str]:
    """Ways to launch many kernels as one that are not in use yet."""
    programs = _programs(run, Scope()).values()
    return [
        way
        for way, used in (
            ("torch.compile", any(program.is_compiled for program in programs)),
            ("CUDA graphs", any(program.uses_graphs for program in programs)),
        )
        if not used
    ]


_COMPILED = ("Torch-Compiled Region", "CompiledFunction")
