"""Run the block and combine the times of all ranks into one report, the same on every rank."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

from rankscope.bench.ranks.world import World, has_slow_path
from rankscope.bench.seqpar.block import (
    TOLERANCE,
    TOLERANCE_TF32,
    Block,
    reference_rows,
    relative_error,
    sample_rows,
)
from rankscope.bench.seqpar.config import COLLECTIVES, CPU_SIZES, GPU_SIZES, PARTS, SLOW_CPU_SIZES, Config
from rankscope.bench.seqpar.stopwatch import Stopwatch
from rankscope.capture.job_name import name_run
from rankscope.capture.schedule import Schedule
from rankscope.collective_kinds import bus_factor
from rankscope.devices import peak_tflops
from rankscope.errors import RankscopeError
from rankscope.host import usable_cores
from rankscope.inapp.engine import mark_step
from rankscope.inapp.profiler import profile

FORMAT = 1
_PROFILE_WARMUP, _PROFILE_ACTIVE = 2, 3
Report = dict[str, Any]
Form = Callable[[Stopwatch], None]


class WrongResultError(RankscopeError):
    """The result of a rank differs from the reference. All ranks raise it."""


def measure(config: Config, world: World) -> Report:
    """Run the whole benchmark on this rank. Raises WrongResultError on all ranks if any result is wrong."""
    config.check(world.size)
    block = Block(config, world)
    watch = Stopwatch(world.device)
    expected = reference_rows(config, world.rank, world.size)
    wall, laps = _timed(block.synchronous, config, world, watch)
    error = relative_error(block.output, expected, sample_rows(config, world.size))
    report = _report(config, world, *_everywhere(world, wall, laps))
    if config.chunks:
        block.output.zero_()
        wall, laps = _timed(block.overlapped, config, world, watch)
        rows = sample_rows(config, world.size)
        error = max(error, relative_error(block.output, expected, rows))
        report["overlap"] = _overlap(config, report, *_everywhere(world, wall, laps))
    report["check"] = _checked(config, world, error)
    return report


def default_sizes(world: World, precision: str) -> tuple[tuple[int, int], list[str]]:
    """The default (sequence, hidden) for this device, and notes for the report."""
    if world.device.type != "cpu":
        return GPU_SIZES, []
    if has_slow_path(world.device, precision):
        return SLOW_CPU_SIZES, [
            f"This CPU has no {precision} instructions: the times are of torch's slow path."
        ]
    return CPU_SIZES, []


def profile_iterations(config: Config, world: World, output: str | None) -> None:
    """Record extra iterations with torch's profiler, after the timed ones, which must run undisturbed."""
    folder, _ = name_run(os.environ, world.identity, ["seqpar"], output, None)
    schedule = Schedule(0, 0, _PROFILE_WARMUP, _PROFILE_ACTIVE, 1)
    block = Block(config, world)
    watch = Stopwatch(world.device)
    form = block.overlapped if config.chunks else block.synchronous
    with profile(folder, schedule=schedule, handlers=(), region=None, record_shapes=True) as profiler:
        world.barrier()
        for _ in range(_PROFILE_WARMUP + _PROFILE_ACTIVE):
            form(watch)
            profiler.step()
        world.synchronize()


def ranged_iteration(config: Config, world: World, part: str) -> None:
    """One more iteration, with a CUDA profiler range around one of its parts: what nsys or ncu waits for."""
    block = Block(config, world)
    block.ranged = part
    block.synchronous(Stopwatch(world.device))
    world.synchronize()


def _timed(form: Form, config: Config, world: World, watch: Stopwatch) -> tuple[int, list[list[int]]]:
    """Warm up, then time the loop. The barrier keeps start-up skew out of the first all-gather."""
    for _ in range(config.warmup):
        form(watch)
        mark_step()
    watch.reset()
    world.barrier()
    began = time.perf_counter_ns()
    for _ in range(config.iterations):
        form(watch)
        mark_step()
    world.synchronize()
    wall = time.perf_counter_ns() - began
    laps = watch.laps()
    watch.reset()
    return wall, laps


def _everywhere(world: World, wall: int, laps: list[list[int]]) -> tuple[list[int], list[list[list[int]]]]:
    """Every rank's wall time and laps."""
    import torch

    flat = [wall, *(value for row in laps for value in row)]
    ranks = [part.tolist() for part in world.gather(torch.tensor(flat, dtype=torch.int64))]
    width = len(laps[0])
    return [rank[0] for rank in ranks], [
        [rank[start : start + width] for start in range(1, len(rank), width)] for rank in ranks
    ]


def _report(config: Config, world: World, walls: list[int], laps: list[list[list[int]]]) -> Report:
    by_part = {name: [[row[index] for row in rank] for rank in laps] for index, name in enumerate(PARTS)}
    whole = [[sum(row) for row in rank] for rank in laps]
    return {
        "bench": "seqpar",
        "format": FORMAT,
        "config": _described(config, world),
        "parts": [_part(name, by_part[name], config, world) for name in PARTS],
        "ranks": [
            {
                "rank": rank,
                "parts": {name: spread(by_part[name][rank]) for name in PARTS},
                "iteration": spread(whole[rank]),
                "wall_ns": walls[rank],
            }
            for rank in range(world.size)
        ],
        "time_to_solution_ns": max(walls),
        "notes": list(world.notes),
    }


def _described(config: Config, world: World) -> dict[str, Any]:
    import torch

    return {
        "sequence": config.sequence,
        "hidden": config.hidden,
        "iterations": config.iterations,
        "warmup": config.warmup,
        "precision": config.precision,
        "chunks": config.chunks,
        "ranks": world.size,
        "launcher": world.identity.source,
        "backend": world.backend,
        "device": world.device.type,
        "device_name": world.device_name,
        "tf32": _tf32(world),
        "torch": torch.__version__,
        "host": platform.node(),
        "cores": usable_cores(),
    }


def _part(name: str, times: list[list[int]], config: Config, world: World) -> dict[str, Any]:
    """One part over all ranks. All ranks leave a collective together, so the shortest time over the ranks, that
    of the last one to arrive, is the transfer without waiting.
    """
    if name in COLLECTIVES:
        p50 = median([min(iteration) for iteration in zip(*times, strict=True)])
        size = config.part_bytes()
        algbw = size / p50  # bytes per nanosecond = GB/s
        return {
            "name": name,
            "kind": "collective",
            "bytes": size,
            "p50_ns": p50,
            "algbw_gb_s": algbw,
            "busbw_gb_s": algbw * (bus_factor("all_gather", world.size) or 0),
        }
    p50 = median([value for rank in times for value in rank])
    flops = config.part_flops(world.size)
    rate = flops / p50 / 1e3
    peak = peak_tflops(world.device_name, config.precision, tf32=_tf32(world))
    return {
        "name": name,
        "kind": "matmul",
        "flops": flops,
        "p50_ns": p50,
        "tflop_s": rate,
        "peak_tflop_s": peak,
        "pct_of_peak": 100 * rate / peak if peak else None,
    }


def _overlap(config: Config, report: Report, walls: list[int], laps: list[list[list[int]]]) -> dict[str, Any]:
    return {
        "chunks": config.chunks,
        "time_to_solution_ns": max(walls),
        "speedup": report["time_to_solution_ns"] / max(walls),
        "ranks": [
            {"rank": rank, "iteration": spread([row[0] for row in of_rank]), "wall_ns": walls[rank]}
            for rank, of_rank in enumerate(laps)
        ],
    }


def _checked(config: Config, world: World, error: float) -> dict[str, Any]:
    import torch

    worst = max(float(part) for part in world.gather(torch.tensor([error], dtype=torch.float64)))
    tolerance = TOLERANCE_TF32 if _tf32(world) else TOLERANCE[config.precision]
    if not worst <= tolerance:  # NaN must fail too
        raise WrongResultError(
            "the result is wrong",
            why=f"It differs from the single-process reference by {worst:.2g} (relative); "
            f"{tolerance:g} is allowed for {config.precision}.",
            hint=f"The times are meaningless. Try another --backend ({world.backend} was used) or torch.",
        )
    return {
        "relative_error": worst,
        "tolerance": tolerance,
        "rows_per_rank": len(sample_rows(config, world.size)),
    }


def _tf32(world: World) -> bool:
    import torch

    return bool(world.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest")


def spread(values: list[int]) -> dict[str, int]:
    return {
        "total_ns": sum(values),
        "mean_ns": round(sum(values) / len(values)),
        "p50_ns": median(values),
        "min_ns": min(values),
        "max_ns": max(values),
    }


def median(values: list[int]) -> int:
    return round(statistics.median(values))
