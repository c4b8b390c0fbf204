"""Advice that fits the program: its framework, its device, and what it already does."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import runs_on_cpu
from rankscope.analysis.core.names import sql_names, vocabulary
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.records import dataclass
from rankscope.timeline.run import Run

Framework = Literal["torch", "jax", "triton", "nsys", ""]
Recorded = Literal["shapes", "memory", "stacks", "gpu", "host", "launches", "steps", "annotations"]
"""What a trace may lack."""
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
    has_torch_kernels: bool
    """For nsys and other profilers, which do not tell the framework."""
    jitted: int
    """The number of functions that JAX compiled."""


@kept_per_rank("program", RankProgram, any_window=True)
def _programs(run: Run, scope: Scope) -> dict[int, RankProgram]:
    graphs = [name for name in vocabulary(run, *LAUNCH_CATEGORIES) if "GraphLaunch" in name]
    compiled = [name for name in vocabulary(run, "cpu_op", "user_annotation") if name.startswith(_COMPILED)]
    rows, kernels, jitted = [], set[int](), dict[int, int]()
    if graphs or compiled:
        rows = run.rows(
            f"SELECT DISTINCT rank, name IN ({sql_names(graphs)}) FROM slices "
            f"WHERE name IN ({sql_names([*graphs, *compiled])}) AND {scope.where()}"
        )
    if framework(run) in ("nsys", ""):
        kernels = {
            rank
            for (rank,) in run.rows(
                f"SELECT DISTINCT rank FROM gpu WHERE contains(name, '{_TORCH_KERNEL}') AND {scope.where()}"
            )
        }
    if framework(run) == "jax":
        jitted = dict(
            run.rows(
                "SELECT rank, count(DISTINCT name) FROM slices WHERE category = 'cpu_op' "
                f"AND starts_with(name, '{_JITTED}') AND {scope.where()} GROUP BY rank"
            )
        )
    return {
        rank: RankProgram((rank, True) in rows, (rank, False) in rows, rank in kernels, jitted.get(rank, 0))
        for rank in sorted({rank for rank, _ in rows} | kernels | set(jitted))
    }


def together(run: Run) -> list[str]:
    """Ways to launch many kernels as one that are not in use yet."""
    if runs_on_cpu(run):
        return []
    programs = _programs(run, Scope()).values()
    if framework(run) == "jax":
        is_one = all(program.jitted == 1 for program in programs)
        return ["several steps in one jax.jit (lax.scan)" if is_one else "one jax.jit around the whole step"]
    ways = []
    if _runs_torch(run) and not any(program.is_compiled for program in programs):
        ways.append("torch.compile")
    if not any(program.uses_graphs for program in programs):
        ways.append("CUDA graphs")
    return ways


def ahead_of_gpu(run: Run) -> list[str]:
    """Ways to keep the host ahead of the GPU."""
    if framework(run) == "jax":
        ways = ["donated arguments (donate_argnums)", "asynchronous dispatch"]
        return ["larger batches", *together(run), *ways]
    return ["larger batches", *together(run), "less Python between ops"]


def fewer_kernels(run: Run) -> list[str]:
    """Ways to launch fewer kernels."""
    return [*in_the_optimizer(run), "larger batches"]


def in_the_optimizer(run: Run) -> list[str]:
    """The same for the optimizer."""
    has_way = _runs_torch(run) and not has_fused_optimizer(run)
    return [*(["fused=True in the optimizer"] if has_way else []), *together(run)]


@once_per_run
def has_fused_optimizer(run: Run) -> bool:
    """Whether one kernel updates many parameters."""
    return any(_FUSED_OPTIMIZER.search(name) for name in vocabulary(run, "cpu_op", "kernel"))


@once_per_run
def _wrappers(run: Run) -> tuple[str, ...]:
    """The wrappers of torch that communicate for the model: 'DDP', 'FSDP'."""
    names = vocabulary(run, "cpu_op", "user_annotation")
    return tuple(
        wrapper for wrapper, pattern in _WRAPPERS.items() if any(pattern.search(name) for name in names)
    )


def ways_to_overlap(run: Run) -> list[str]:
    """Ways to communicate while the device computes."""
    if framework(run) == "jax":
        return ["XLA's latency-hiding scheduler"]
    ways = {"DDP": "larger DDP buckets (bucket_cap_mb)", "FSDP": "FSDP prefetching"}
    return [*(ways[wrapper] for wrapper in _wrappers(run)), "async_op=True"]


def larger_messages(run: Run) -> list[str]:
    """Ways to send fewer and larger messages."""
    ways = {"DDP": "a larger bucket_cap_mb in DDP", "FSDP": "larger wrapped units in FSDP"}
    return [*(ways[wrapper] for wrapper in _wrappers(run)), "one call for the tensors flattened into one"]


def read_later(run: Run) -> str:
    """What makes the host wait for the device."""
    return _BLOCKING.get(framework(run), "copies to the host")


def load_faster(run: Run, line: str = "") -> str:
    """How to wait less for data; `line` is where the program loads it."""
    look = f"Look at {line}. " if line else ""
    if framework(run) in ("jax", "triton"):
        return f"{look}Load data in other processes and ahead of the step: prefetching, more workers, cheaper decoding."
    pinned = "" if runs_on_cpu(run) else "pin_memory=True, "
    return (
        f"{look}Use more DataLoader workers (num_workers). Also: prefetch_factor, persistent_workers=True, {pinned}"
        "cheaper decoding."
    )


def copy_less(run: Run, *, is_pageable: bool, crosses: bool) -> str:
    """How to wait less for copies, of pageable memory or not, between host and device or not."""
    if framework(run) == "jax":
        return "Copy less: keep arrays on the device, and put the next batch there ahead of time (jax.device_put)."
    if is_pageable:
        return "Copy from and to pinned memory with non_blocking=True (DataLoader: pin_memory=True), ahead of time."
    if crosses:
        return (
            "Copy ahead of time on another stream while the device computes, or keep the data on the device."
        )
    return "Copy less: work in place, and avoid .contiguous(), .clone() and torch.cat of what is needed once."


def how_to_record(run: Run, what: Recorded) -> str:
    """What has to be done for something to be in the trace."""
    return _RECORDING[what].get(framework(run)) or _RECORDING[what]["torch"]


def recording_hint(run: Run, what: Recorded) -> str:
    """The same as a sentence."""
    how = how_to_record(run, what)
    is_code = how.startswith("nsys ") or "." in how.partition(" ")[0]
    return f"{how if is_code else how[0].upper() + how[1:]}."


def _runs_torch(run: Run) -> bool:
    return framework(run) == "torch" or any(
        program.has_torch_kernels for program in _programs(run, Scope()).values()
    )


_JITTED, _TORCH_KERNEL = "PjitFunction(", "at::native"
_FUSED_OPTIMIZER = re.compile(
    r"_fused_(?:adam|sgd|adagrad)|Fused(?:Adam|SGD|LAMB|Adagrad)|multi_tensor_apply.*(?:Adam|SGD|LAMB)Functor"
)
_WRAPPERS = {
    "DDP": re.compile(r"^DistributedDataParallel\."),
    "FSDP": re.compile(r"^(?:FSDP::|FullyShardedDataParallel\.)"),
}
_COMPILED = ("Torch-Compiled Region", "CompiledFunction")
_BLOCKING: dict[Framework, str] = {
    "torch": ".item(), .cpu(), print(loss)",
    "nsys": ".item(), .cpu(), print(loss)",
    "jax": "float(loss), np.asarray, block_until_ready",
}
_HOST_TOO = "Proton records kernels only, rankscope profile --tool nsys also the host"
_RECORDING: dict[Recorded, dict[Framework, str]] = {
    "shapes": {
        "torch": "rankscope profile --record-shapes (record_shapes=True) records them",
        "nsys": "nsys does not record them; rankscope profile --tool torch --record-shapes does, and rankscope profile "
        "--tool ncu counts FLOPs",
        "jax": "XLA's profiler does not record them; rankscope profile --tool ncu counts FLOPs",
        "triton": "Proton does not record them; rankscope profile --tool ncu counts FLOPs",
    },
    "memory": {
        "torch": "rankscope profile --profile-memory (profile_memory=True) records it",
        "nsys": "nsys profile --cuda-memory-usage=true records it",
        "jax": "XLA's trace does not have it",
        "triton": "Proton's trace does not have it",
    },
    "stacks": {
        "torch": "with_stack=True records them (rankscope profile --with-stack)",
        "nsys": "torch.profiler records them (rankscope profile --tool torch --with-stack)",
        "jax": "jax.profiler.ProfileOptions with python_tracer_level = 1 records them",
        "triton": "Proton does not record them: rankscope profile --tool torch --with-stack",
    },
    "gpu": {
        "torch": "ProfilerActivity.CUDA records them (rankscope profile does by itself)",
        "nsys": "nsys profile -t cuda records them",
        "jax": "jax.profiler.trace records them on a GPU or TPU",
        "triton": "proton.start with data='trace' records them",
    },
    "host": {
        "torch": "ProfilerActivity.CPU records them",
        "nsys": "torch.profiler records them (rankscope profile --tool torch)",
        "jax": "jax.profiler.ProfileOptions with host_tracer_level = 2 records the host",
        "triton": _HOST_TOO,
    },
    "launches": {
        "torch": "ProfilerActivity.CPU and CUDA together record them",
        "nsys": "nsys profile -t cuda records them",
        "jax": "jax.profiler.ProfileOptions with host_tracer_level = 2 records the host",
        "triton": _HOST_TOO,
    },
    "steps": {
        "torch": "call profiler.step() in the loop (rankscope profile counts optimizer steps)",
        "nsys": "mark them with NVTX: torch.cuda.nvtx.range(f'step {number}')",
        "jax": "use jax.profiler.StepTraceAnnotation('train', step_num=number)",
        "triton": "Proton does not record any",
    },
    "annotations": {
        "torch": "torch.profiler.record_function(name) adds them",
        "nsys": "torch.cuda.nvtx.range(name) adds them",
        "jax": "jax.profiler.TraceAnnotation(name) adds them",
        "triton": "proton.scope(name) adds them",
    },
}
"""How to record something, as the end of a sentence."""
