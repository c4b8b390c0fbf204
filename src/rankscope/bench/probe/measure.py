"""The tests of one rank's device, and of every pair of ranks. Standard library and torch only.

All ranks run a test at the same time, as in training: neighbours share power, cooling and links. A GPU that somebody
else uses is left alone: the tests would slow that job down, and their times would say nothing.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.bench.probe.gpu_state import GpuQuery, Sampling, State, summarised, xids
from rankscope.bench.probe.results import DeviceResult, PairResult, Results
from rankscope.bench.ranks.world import World
from rankscope.errors import RankscopeError

_BUSY_PCT = 10
"""A GPU that is busier than this before the tests is in use."""
_BLOCK_S = 0.05
"""Calls are timed in blocks of about this length."""
_COPY_S = 0.5
"""Copies need no time to get warm."""
_MOST_ROUNDS = 15
"""Up to 16 ranks of a node, and 16 nodes, every pair is measured; of more, 15 partners of each."""
_PAIR_BLOCKS, _PAIR_CALLS = 7, 2
_DISK_ROUNDS, _DISK_CHUNKS, _CHUNK_BYTES = 3, 8, 8 * 2**20


class Sizes(NamedTuple):
    matrix: int
    copy_bytes: int
    pair_bytes: int


_SIZES = {True: Sizes(1024, 2**27, 2**24), False: Sizes(8192, 2**29, 2**26)}
"""On a CPU, and on other devices."""

Work = tuple[Callable[[], object], float]
"""One call of a test, and what it does: GB, or 1e12 floating-point operations."""


def measure(world: World, tested: World, seconds: float, folder: Path | None) -> Results:
    """Run all tests, with the other ranks. All ranks get the results of all.

    ``world`` is how the ranks meet, over their CPUs. ``tested`` is not joined: it has the device, and the backend for
    the pairs. ``folder`` is where the disk is tested.
    """
    import torch

    host, device = platform.node(), tested.device
    query = GpuQuery(_selector(device))
    idle = summarised([query.sample() for _ in range(3)])
    number = None if device.type == "cpu" else int(idle.get("gpu", device.index))
    result = DeviceResult(world.rank, host, number, tested.device_name, state=idle)
    result.busy = idle.get("busy_pct", 0.0) >= _BUSY_PCT
    # Also a barrier: nobody works until all have looked.
    everybody = world.gather_json([host, number, result.busy])
    hosts = [other for other, _, _ in everybody]
    result.sharing = everybody.count([host, number, result.busy]) if number is not None else 1
    if device.type != "cpu" and not result.busy:
        getattr(torch, device.type).set_device(device)
    _measure_device(world, tested, seconds, query, result)
    result.state["xids"] = xids(result.state.get("bus"))
    pairs = list(_measured_pairs(world, tested, hosts, [busy for _, _, busy in everybody]))
    if folder is not None and hosts.index(host) == world.rank:
        try:
            result.rates |= _disk_rates(folder)
        except OSError as error:
            result.notes.append(f"the disk was not measured: {error}")
    gathered = world.gather_json([asdict(result), [asdict(pair) for pair in pairs]])
    return Results(
        [DeviceResult(**device) for device, _ in gathered],
        [PairResult(**pair) for _, of_rank in gathered for pair in of_rank],
        tested.backend,
        str(torch.__version__),
    )


def _selector(device: Any) -> str | None:
    """What nvidia-smi -i takes for this rank's GPU."""
    import torch

    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else str(device.index)


def _measure_device(
    world: World, tested: World, seconds: float, query: GpuQuery, result: DeviceResult
) -> None:
    """Fill in the rates and the state under load."""
    for name, prepare in _TESTS.items():
        if tested.device.type == "cpu" and name in ("to_gpu", "from_gpu"):
            continue
        work = None
        try:
            work = None if result.busy else prepare(tested.device)
        except RuntimeError as error:  # too little memory is free
            result.notes.append(f"{name} was not measured: {str(error).splitlines()[0]}")
        world.barrier()
        if work is None:
            continue
        try:
            timing = _timed(work, seconds if name == "matmul" else min(seconds, _COPY_S), tested, query)
        except RuntimeError as error:
            raise RankscopeError(
                f"{name} failed on {result.name}",
                why=str(error).splitlines()[0],
                hint="The device may be lost. Look at nvidia-smi and at the kernel's log: dmesg | grep Xid",
            ) from error
        result.rates[name] = timing.rates
        if name == "matmul":
            result.state |= {**summarised(timing.samples), **timing.cpu}
            if tested.device.type != "cpu":  # a CPU's order of summation depends on its threads
                result.digest, result.repeatable = _checked(tested.device)
        elif name == "to_gpu":  # an idle link is slower to save power
            state = summarised(timing.samples)
            result.state |= {key: state[key] for key in ("pcie_gen", "pcie_width") if key in state}


def _operands(device: Any) -> Iterator[Any]:
    """The same on every rank. Random numbers: a GPU needs less power, and runs faster, for zeros."""
    import torch

    is_cpu = device.type == "cpu"
    size = _SIZES[is_cpu].matrix
    generator = torch.Generator(device).manual_seed(1)
    for _ in range(2):
        values = torch.randn(size, size, device=device, generator=generator)
        yield values if is_cpu else values.bfloat16()


def _matmul(device: Any) -> Work:
    import torch

    left, right = _operands(device)
    product = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=product), 2.0 * len(left) ** 3 / 1e12


def _checked(device: Any) -> tuple[int, bool]:
    """A sum over the bits of the product, and whether it comes out the same again."""
    import torch

    left, right = _operands(device)
    first, second = (int(torch.mm(left, right).view(torch.int16).sum(dtype=torch.int64)) for _ in range(2))
    return first, first == second


def _copy(device: Any, source: Any, target: Any, passes: int) -> Work:
    import torch

    size = _SIZES[device.type == "cpu"].copy_bytes
    here, there = (torch.ones(size, dtype=torch.uint8, device=side) for side in (source, target))
    if source != target:
        here, there = (side.pin_memory() if side.device.type == "cpu" else side for side in (here, there))
    return lambda: there.copy_(here, non_blocking=True), passes * size / 1e9


_TESTS: dict[str, Callable[[Any], Work]] = {
    "matmul": _matmul,
    "memory": lambda device: _copy(device, device, device, 2),  # every byte is read and written
    "to_gpu": lambda device: _copy(device, "cpu", device, 1),
    "from_gpu": lambda device: _copy(device, device, "cpu", 1),
}


class Timing(NamedTuple):
    rates: list[float]
    """Of each block of calls."""
    samples: list[State]
    """What nvidia-smi said meanwhile."""
    cpu: State
    """On a CPU: the share of its cores that this process got."""


def _timed(work: Work, seconds: float, tested: World, query: GpuQuery) -> Timing:
    """Call again and again. On a CPU the rates are by CPU time: how fast the cores are, whoever else uses them."""
    import torch

    call, amount = work
    is_cpu, threads = tested.device.type == "cpu", torch.get_num_threads()

    def block(calls: int) -> tuple[float, float]:
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(calls):
            call()
        tested.synchronize()
        return time.perf_counter() - began, (time.process_time() - cpu_began) / threads

    block(1)
    calls = max(1, round(_BLOCK_S / block(1)[0]))
    block(calls)
    blocks = []
    with Sampling(query) as sampling:
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds or sampling.active:
            if elapsed >= seconds:
                sampling.stop()
            blocks.append(block(calls))
    settled = blocks[len(blocks) // 3 :]  # at first the clock and the power still move
    rates = [_rounded(amount * calls / (cpu_s if is_cpu else wall_s)) for wall_s, cpu_s in settled]
    walls, cpus = zip(*settled, strict=True)
    return Timing(rates, sampling.samples, {"cpu_share": sum(cpus) / sum(walls)} if is_cpu else {})


def _rounded(rate: float) -> float:
    return float(f"{rate:.5g}")


def rounds(hosts: Sequence[str]) -> Iterator[dict[int, int]]:
    """The partner of each rank, round by round: first within the nodes, then between the ranks of equal place on them.

    ``hosts`` are those of the ranks.
    """
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    rails = [
        [ranks[at] for ranks in nodes.values() if at < len(ranks)]
        for at in range(max(map(len, nodes.values())))
    ]
    for groups in (list(nodes.values()), rails):
        for turn in range(_MOST_ROUNDS):
            meetings = [_meetings(ranks, turn) for ranks in groups]
            if partners := {rank: partner for pairs in meetings for rank, partner in pairs.items()}:
                yield partners


def _meetings(ranks: Sequence[int], turn: int) -> dict[int, int]:
    """Each pair meets once: the circle method of tournaments. With an odd number one rank pauses."""
    seats = len(ranks) + len(ranks) % 2
    count = seats - 1
    if turn >= count:
        return {}
    shift = turn * max(1, count // _MOST_ROUNDS)
    circle = [seats - 1, *((shift + at) % count for at in range(count))]
    both = zip(circle, reversed(circle), strict=True)
    return {ranks[seat]: ranks[other] for seat, other in both if max(seat, other) < len(ranks)}


def _measured_pairs(world: World, tested: World, hosts: list[str], busy: list[bool]) -> Iterator[PairResult]:
    """all_reduce with one partner after the other; the lower rank of a pair reports it."""
    import torch
    from torch import distributed

    values = _SIZES[tested.device.type == "cpu"].pair_bytes // 4
    payload = None if busy[world.rank] else torch.zeros(values, device=tested.device)
    for partners in rounds(hosts):
        partner = partners.get(world.rank)
        group = None
        if payload is not None and partner is not None and not busy[partner]:
            pair = sorted((world.rank, partner))
            group = distributed.new_group(pair, backend=tested.backend, use_local_synchronization=True)
            distributed.all_reduce(payload, group=group)
        world.barrier()
        if group is None or payload is None:
            continue
        rates = []
        for _ in range(_PAIR_BLOCKS):
            began = time.perf_counter()
            for _ in range(_PAIR_CALLS):
                distributed.all_reduce(payload, group=group)
            tested.synchronize()
            rates.append(_rounded(_PAIR_CALLS * payload.nbytes / 1e9 / (time.perf_counter() - began)))
        distributed.destroy_process_group(group)
        if world.rank == pair[0]:
            yield PairResult(pair, rates)


def _disk_rates(folder: Path) -> dict[str, list[float]]:
    """Writing a new file until it is on the disk, and reading it back, not from memory where the system lets us."""
    chunk = os.urandom(_CHUNK_BYTES)
    rates: dict[str, list[float]] = {"disk_write": [], "disk_read": []}
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(_DISK_ROUNDS):
            for name in rates:
                file.seek(0)
                began = time.perf_counter()
                for _ in range(_DISK_CHUNKS):
                    if name == "disk_write":
                        file.write(chunk)
                    else:
                        file.read(_CHUNK_BYTES)
                os.fsync(file.fileno())
                rates[name].append(
                    _rounded(_DISK_CHUNKS * _CHUNK_BYTES / 1e9 / (time.perf_counter() - began))
                )
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return rates
