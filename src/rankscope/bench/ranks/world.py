"""The process group of a benchmark, from one rank: its device, its backend, and how to join and leave.

The rendezvous address is derived on every rank from the launcher's variables alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import tempfile
import warnings
import zlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.capture.job_name import job_id
from rankscope.capture.rank import Identity, detect
from rankscope.errors import RankscopeError, UsageError

BACKENDS = ("nccl", "gloo", "xccl", "mpi")
DEVICES = ("cuda", "xpu", "cpu")
_NATIVE = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}
_JOIN_TIMEOUT_S = 120
_FIRST_PORT, _PORTS = 20000, 20000


class World(NamedTuple):
    """One rank of a process group that has been joined."""

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
            threads = torch.get_num_threads()
            return f"CPU ({threads} thread{'s' * (threads != 1)} a rank)"
        name: str = getattr(torch, self.device.type).get_device_name(self.device)
        return name

    def synchronize(self) -> None:
        """Wait for this rank's device."""
        import torch

        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize(self.device)

    def barrier(self) -> None:
        """Wait until all ranks are here and their devices are idle. An all-reduce: every backend has it."""
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

    def gather_json(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank. torch's own all_gather_object needs numpy."""
        import torch

        text = json.dumps(value).encode()
        sizes = [int(size) for size in self.gather(torch.tensor([len(text)]))]
        padded = torch.tensor(list(text.ljust(max(sizes))), dtype=torch.uint8)
        return [json.loads(bytes(part.tolist())) for part in self.gather(padded)]


def join(backend: str | None, device_type: str | None) -> World:
    """Join the process group of the job, as the launcher's variables describe it."""
    import torch

    identity = detect(os.environ)
    if identity.world_size is None:
        raise RankscopeError(
            "the number of ranks is not known",
            why=f"{identity.source} does not set it.",
            hint="Export RANK, LOCAL_RANK and WORLD_SIZE, or start it with torchrun, mpiexec or srun.",
        )
    device, chosen, notes = choose_device(backend, device_type, identity)
    if device.type != "cpu":
        getattr(torch, device.type).set_device(device)
    arguments: dict[str, Any] = {"rank": identity.rank, "world_size": identity.world_size}
    if identity.world_size == 1:
        arguments["store"] = torch.distributed.HashStore()
    else:
        arguments["init_method"] = meeting_point(os.environ, identity)
    try:
        torch.distributed.init_process_group(chosen, timeout=timedelta(seconds=_JOIN_TIMEOUT_S), **arguments)
    except (RuntimeError, ValueError) as error:
        raise RankscopeError(
            f"rank {identity.rank} could not join the {identity.world_size} ranks ({chosen})",
            why=str(error).splitlines()[0],
            hint="Check that all ranks were started and that MASTER_ADDR can be reached from each.",
        ) from error
    return World(identity.rank, identity.world_size, chosen, device, identity, notes)


def choose_device(
    backend: str | None, device_type: str | None, identity: Identity
) -> tuple[Any, str, tuple[str, ...]]:
    """The device of this rank, which is not touched yet, the backend to use with it, and notes for the report."""
    import torch

    kind = _device_type(device_type)
    count = 1 if kind == "cpu" else int(getattr(torch, kind).device_count())
    index = (identity.local_rank or 0) % count
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, index)
    return device, *_backend(backend, kind, shared_device=(identity.local_size or 1) > count)


def run_as_rank(backend: str | None, device_type: str | None, work: Callable[[World], int]) -> int:
    """Join, work, leave. Of a usage error that all ranks find, only rank 0 tells."""
    try:
        return work(join(backend, device_type))
    except UsageError as error:
        if detect(os.environ).rank == 0:
            raise
        return error.exit_code
    finally:
        leave()


def meeting_point(env: Mapping[str, str], identity: Identity) -> str:
    """torch's init_method for this job: the same on every rank."""
    if identity.source == "torchrun":
        return "env://"  # torchrun's agent already runs the store
    if env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        return f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    if identity.one_node:
        # A file needs no free port. The job id separates two jobs.
        folder = Path(tempfile.gettempdir())
        return f"file://{folder}/rankscope-seqpar-{os.getuid()}-{job_id(env, identity)}"
    host = _first_host(env)
    if host is None:
        raise RankscopeError(
            "the ranks do not know where to meet",
            why=f"{identity.source} runs on several nodes and does not name the first one.",
            hint="Export MASTER_ADDR (a host of the job, where rank 0 runs) and MASTER_PORT to all ranks.",
        )
    port = _FIRST_PORT + zlib.crc32(job_id(env, identity).encode()) % _PORTS
    return f"tcp://{host}:{env.get('MASTER_PORT') or port}"


def _first_host(env: Mapping[str, str]) -> str | None:
    """The job's first node, where rank 0 runs, from Slurm or PBS."""
    if env.get("MASTER_ADDR"):
        return env["MASTER_ADDR"]
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    if nodes:
        first = first_of_nodelist(nodes)
        # A Slurm node name may not resolve as a host name; then use the address that srun ran on.
        return first if _resolves(first) else env.get("SLURM_LAUNCH_NODE_IPADDR", first)
    try:
        return Path(env["PBS_NODEFILE"]).read_text(encoding="utf-8").split()[0]
    except (KeyError, OSError, IndexError):
        return _host_of_mpirun(env)


def _host_of_mpirun(env: Mapping[str, str]) -> str | None:
    """Where Open MPI's mpirun runs. In a PBS job that is the first node; the node file is often on that node only."""
    match = re.search(r"tcp://([^,:;]+)", env.get("OMPI_MCA_orte_hnp_uri", ""))
    return match[1] if match and env.get("PBS_JOBID") else None


def first_of_nodelist(text: str) -> str:
    """'n[1-2],m7' -> 'n1', 'gpu[007,009]-ib' -> 'gpu007-ib'."""
    match = re.match(r"([^\[,]*)(?:\[([^\]]*)\])?([^,]*)", text)
    assert match is not None  # every part may be empty
    numbers = re.split(r"[,-]", match[2])[0] if match[2] else ""
    return f"{match[1]}{numbers}{match[3]}"


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def leave() -> None:
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _device_type(requested: str | None) -> str:
    import torch

    present = [
        kind for kind in ("cuda", "xpu") if hasattr(torch, kind) and getattr(torch, kind).is_available()
    ]
    if requested is None:
        return [*present, "cpu"][0]
    if requested != "cpu" and requested not in present:
        raise UsageError(
            f"--device {requested} is not available",
            why=f"torch {torch.__version__} finds {', '.join(present) if present else 'no GPU'} on this machine.",
            hint="Leave --device out, or give --device cpu.",
        )
    return requested


def _backend(requested: str | None, kind: str, *, shared_device: bool) -> tuple[str, tuple[str, ...]]:
    """The backend, and notes."""
    import torch

    available = [name for name in BACKENDS if _available(name)]
    native = _NATIVE[kind]
    if requested is not None:
        if requested not in available:
            raise UsageError(
                f"--backend {requested} is not available",
                why=f"torch {torch.__version__} was built with {', '.join(available)}.",
                hint=f"Give --backend {native if native in available else available[0]}, or leave it out.",
            )
        if requested in ("nccl", "xccl") and kind == "cpu":
            raise UsageError(
                f"--backend {requested} needs a GPU", why="This runs on the CPU.", hint="Give --backend gloo."
            )
        if requested == "nccl" and shared_device:
            raise UsageError(
                "NCCL needs one GPU for each rank",
                why="There are more ranks on this node than GPUs.",
                hint="Start fewer ranks, or give --backend gloo.",
            )
        return requested, ()
    if shared_device and kind != "cpu":
        return "gloo", ("More ranks than GPUs on a node: they share them, over gloo.",)
    if native not in available:
        return "gloo", (f"This torch has no {native}: gloo is used.",)
    return native, ()


def _available(name: str) -> bool:
    import torch

    asked = getattr(torch.distributed, f"is_{name}_available", None)
    return bool(asked is not None and asked())


def require_torch(why: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise RankscopeError(
            "this Python has no torch",
            why=why,
            hint="Install it (pip install torch), or use the Python of your training image.",
        )


def renamed_collective(new: str, old: str) -> Any:
    """A function of torch.distributed. torch 2.13 renamed it and warns about the old name; 2.4 has only that."""
    from torch import distributed

    return getattr(distributed, new, None) or getattr(distributed, old)


def has_slow_path(device: Any, precision: str) -> bool:
    """Whether torch lacks a fast matrix product for this precision on this device. Only a warning reports it."""
    import torch

    if device.type != "cpu" or precision == "float32":
        return False
    probe = torch.ones(64, 64, dtype=getattr(torch, precision))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.nn.functional.linear(probe, probe)
    return any("mkldnn_matmul failed" in str(warning.message) for warning in caught)
