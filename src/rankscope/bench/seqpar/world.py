"""This rank among the others: its device, its backend, its process group."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from rankscope.bench.seqpar.rendezvous import meeting_point
from rankscope.capture.rank import Identity, detect
from rankscope.errors import RankscopeError, UsageError

BACKENDS = ("nccl", "gloo", "xccl", "mpi")
DEVICES = ("cuda", "xpu", "cpu")
_NATIVE = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}
_MEETING_S = 120


class World(NamedTuple):
    """Who takes part, and with what."""

    rank: int
    size: int
    backend: str
    device: Any
    identity: Identity
    notes: tuple[str, ...] = ()

    @property
    def device_name(self) -> str:
        import torch

        if self.device.type == "cpu":
            return f"CPU ({_threads(torch.get_num_threads())} a rank)"
        name: str = getattr(torch, self.device.type).get_device_name(self.device)
        return name

    def synchronize(self) -> None:
        """Wait for this rank's device."""
        import torch

        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize(self.device)

    def barrier(self) -> None:
        """All ranks are here, and nothing is queued: an all-reduce, because every backend has it."""
        import torch

        token = torch.ones(1, device=self.device)
        torch.distributed.all_reduce(token)
        assert token.item() == self.size
        self.synchronize()

    def gather(self, tensor: Any) -> list[Any]:
        """Every rank's tensor, on the CPU, on every rank."""
        import torch

        mine = tensor.to(self.device)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        torch.distributed.all_gather(parts, mine)
        return [part.cpu() for part in parts]


def join(backend: str | None, device_type: str | None) -> World:
    """Take this process's place in the job that its launcher describes."""
    import torch

    identity = detect(os.environ)
    if identity.world_size is None:
        raise RankscopeError(
            "the number of ranks is not known",
            why=f"{identity.source} does not say it.",
            hint="Export RANK, LOCAL_RANK and WORLD_SIZE, or start it with torchrun, mpiexec or srun.",
        )
    kind = _device_type(device_type)
    count = 1 if kind == "cpu" else int(getattr(torch, kind).device_count())
    index = (identity.local_rank or 0) % count
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, index)
    if kind != "cpu":
        getattr(torch, kind).set_device(device)
    chosen, notes = _backend(backend, kind, (identity.local_size or 1) > count)
    arguments: dict[str, Any] = {"rank": identity.rank, "world_size": identity.world_size}
    if identity.world_size == 1:
        arguments["store"] = torch.distributed.HashStore()
    else:
        arguments["init_method"] = meeting_point(os.environ, identity)
    try:
        torch.distributed.init_process_group(chosen, timeout=timedelta(seconds=_MEETING_S), **arguments)
    except (RuntimeError, ValueError) as error:
        raise RankscopeError(
            f"rank {identity.rank} could not join the {identity.world_size} ranks ({chosen})",
            why=str(error).splitlines()[0],
            hint="Check that all ranks were started and that MASTER_ADDR can be reached from each.",
        ) from error
    return World(identity.rank, identity.world_size, chosen, device, identity, notes)


def leave() -> None:
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _device_type(asked: str | None) -> str:
    import torch

    there = [kind for kind in ("cuda", "xpu") if hasattr(torch, kind) and getattr(torch, kind).is_available()]
    if asked is None:
        return [*there, "cpu"][0]
    if asked != "cpu" and asked not in there:
        raise UsageError(
            f"--device {asked} is not there",
            why=f"torch {torch.__version__} finds {_listed(there) if there else 'no GPU'} on this machine.",
            hint="Leave --device out, or give --device cpu.",
        )
    return asked


def _backend(asked: str | None, kind: str, shared: bool) -> tuple[str, tuple[str, ...]]:
    """The backend to use, and what must be said about it. ``shared``: several ranks on one device."""
    import torch

    there = [name for name in BACKENDS if _available(name)]
    native = _NATIVE[kind]
    if asked is not None:
        if asked not in there:
            raise UsageError(
                f"--backend {asked} is not there",
                why=f"torch {torch.__version__} was built with {_listed(there)}.",
                hint=f"Give --backend {native if native in there else there[0]}, or leave it out.",
            )
        if asked in ("nccl", "xccl") and kind == "cpu":
            raise UsageError(
                f"--backend {asked} needs a GPU", why="This runs on the CPU.", hint="Give --backend gloo."
            )
        if asked == "nccl" and shared:
            raise UsageError(
                "NCCL needs one GPU for each rank",
                why="There are more ranks on this node than GPUs.",
                hint="Start fewer ranks, or give --backend gloo.",
            )
        return asked, ()
    if shared and kind != "cpu":
        return "gloo", ("More ranks than GPUs on a node: they share them, over gloo.",)
    if native not in there:
        return "gloo", (f"This torch has no {native}: gloo is used.",)
    return native, ()


def _available(name: str) -> bool:
    import torch

    found = getattr(torch.distributed, f"is_{name}_available", None)
    return bool(found is not None and found())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def has_slow_path(device: Any, precision: str) -> bool:
    """Whether torch has no fast matrix product for this precision here (it says so only once, in a warning)."""
    import torch

    if device.type != "cpu" or precision == "float32":
        return False
    probe = torch.ones(64, 64, dtype=getattr(torch, precision))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.nn.functional.linear(probe, probe)
    return any("mkldnn_matmul failed" in str(one.message) for one in said)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
