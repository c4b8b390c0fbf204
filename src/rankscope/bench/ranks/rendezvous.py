"""The rendezvous address of a job, derived on every rank from the launcher's variables alone."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from rankscope.capture.job_name import job_id
from rankscope.capture.rank import Identity
from rankscope.errors import RankscopeError

_FIRST_PORT, _PORTS = 20000, 20000


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
