"""Advice that depends on what the program already does: nobody needs to hear what is in use."""

from __future__ import annotations

from rankscope.analysis.core.names import vocabulary
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.store.run import Run


def uses_graphs(run: Run) -> bool:
    """Whether kernels are launched as CUDA (or HIP) graphs."""
    return any("GraphLaunch" in name for name in vocabulary(run, *LAUNCH_CATEGORIES))


def is_compiled(run: Run) -> bool:
    """Whether torch.compile made some of the code."""
    names = vocabulary(run, "cpu_op", "user_annotation")
    return any(name.startswith(("Torch-Compiled Region", "CompiledFunction")) for name in names)


def together(run: Run) -> list[str]:
    """Ways to launch many kernels as one that are not in use yet."""
    return [
        way
        for way, used in (("torch.compile", is_compiled(run)), ("CUDA graphs", uses_graphs(run)))
        if not used
    ]
