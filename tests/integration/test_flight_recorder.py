"""Torch's flight recorder over gloo: three ranks, one does not join a collective, and the dumps name it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.jobs import free_port
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.slow

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
    work = dist.all_reduce(tensor, async_op=True)  # rank 2 does not join
store = dist.distributed_c10d._get_default_store()
store.set(f"posted{rank}", "1")
store.wait(["posted0", "posted1", "posted2"])
time.sleep(1)  # on a busy machine, dumps taken at once were incomplete
content = c10d._dump_fr_trace(True, True, False)
open(f"{folder}/pickle/_dump_{rank}", "wb").write(content)
content = c10d._dump_fr_trace_json(True, False)
open(f"{folder}/json/nccl_trace_rank_{rank}", "wb").write(content)
store.set(f"dumped{rank}", "1")
store.wait(["dumped0", "dumped1", "dumped2"])  # a rank that ends would end the others' all_reduce
store.set(f"leaves{rank}", "1")
if rank == 0:  # it serves the store
    store.wait(["leaves1", "leaves2"])
os._exit(0)
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("dumps")
    (folder / "pickle").mkdir()
    (folder / "json").mkdir()
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "3",
    }
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


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_the_missing_rank_is_named(dumps: Path, kind: str) -> None:
    run = Run(ingest([dumps / kind]))
    result = REPORTS["hang.flight_recorder"].analyse(run, Scope(), None)
    (finding,) = result.findings
    assert finding.severity == "critical" and finding.ranks == (2,)
    row = result.rows[0]
    assert (row["kind"], row["missing_ranks"], row["state"], row["waiting_ranks"]) == (
        "all_reduce",
        [2],
        "not joined",
        [0, 1],
    )
