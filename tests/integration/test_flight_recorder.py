"""Torch's own flight recorder, over gloo: three ranks, one of them does not come, and the dumps name it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.store.ingest import ingest
from rankscope.store.run import Run

JOB = """
import os, sys, time
import torch, torch.distributed as dist
import torch._C._distributed_c10d as c10d
if not hasattr(c10d, "_dump_fr_trace"):
    sys.exit(77)
rank, folder = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo")
tensor = torch.ones(10)
dist.all_reduce(tensor)
dist.barrier()
if rank != 2:
    work = dist.all_reduce(tensor, async_op=True)  # rank 2 never comes
store = dist.distributed_c10d._get_default_store()
time.sleep(1)
content = c10d._dump_fr_trace(True, True, False)
open(f"{folder}/pickle/_dump_{rank}", "wb").write(content)
content = c10d._dump_fr_trace_json(True, False)
open(f"{folder}/json/nccl_trace_rank_{rank}", "wb").write(content)
store.set(f"done{rank}", "1")
store.wait(["done0", "done1", "done2"])
if rank == 0:
    time.sleep(1)  # it keeps the store for the others
os._exit(0)
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("dumps")
    (folder / "pickle").mkdir()
    (folder / "json").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3"}
    environment |= {"TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen([sys.executable, "-c", JOB, str(folder)], env={**environment, "RANK": str(rank)})
        for rank in range(3)
    ]
    codes = [job.wait(timeout=120) for job in jobs]
    if 77 in codes:
        pytest.skip("this torch records no flights over gloo")
    assert codes == [0, 0, 0]
    return folder


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_the_missing_rank_is_named(dumps: Path, kind: str) -> None:
    run = Run(ingest([dumps / kind]))
    result = REPORTS["flight"].analyse(run, Scope(), None)
    (finding,) = result.findings
    assert finding.severity == "critical" and finding.ranks == (2,)
    row = result.rows[0]
    assert (row["kind"], row["missing_ranks"], row["state"], row["waiting_ranks"]) == (
        "all_reduce",
        [2],
        "not joined",
        [0, 1],
    )
