"""`rankscope bench collectives` with real ranks over gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import PYTHON, needs, needs_torch, run

pytestmark = [pytest.mark.slow, needs_torch]

BENCH = [PYTHON, "-m", "rankscope", "bench", "collectives", "-n", "2", "-w", "1"]
SMALL = ["-b", "96", "-e", "6144", "-f", "64"]
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv")


def check(text: str, ranks: int, dtype: str = "float32") -> None:
    rows: list[dict[str, Any]] = json.loads(text)
    assert [(row["kind"], row["bytes"]) for row in rows] == [
        (kind, size) for kind in KINDS for size in (96, 6144)
    ]
    for row in rows:
        assert (row["ranks"], row["dtype"], row["wrong"], row["note"]) == (ranks, dtype, 0, "")
        assert row["time_us"] > 0 and row["busbw_gb_s"] > 0
        assert list(row)[:7] == ["kind", "bytes", "ranks", "dtype", "time_us", "algbw_gb_s", "busbw_gb_s"]


@pytest.mark.parametrize(("ranks", "dtype"), [(2, "bfloat16"), (3, "float32")])
@pytest.mark.thorough
def test_without_a_launcher(tmp_path: Path, ranks: int, dtype: str) -> None:
    done = run([*BENCH, *SMALL, "--nproc", str(ranks), "-d", dtype, "--json"], tmp_path)
    check(done.stdout, ranks, dtype)


@pytest.mark.thorough
def test_under_torchrun(tmp_path: Path) -> None:
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", *BENCH[2:]]
    check(run([*torchrun, *SMALL, "--json"], tmp_path).stdout, 2)


@pytest.mark.thorough
@needs("mpirun.openmpi", "openmpi-bin")
def test_under_openmpi(tmp_path: Path) -> None:
    check(run(["mpirun.openmpi", "--oversubscribe", "-n", "2", *BENCH, *SMALL, "--json"], tmp_path).stdout, 2)


@pytest.mark.thorough
def test_the_table_and_an_error_printed_once(tmp_path: Path) -> None:
    done = run([*BENCH, "-k", "broadcast", "-e", "1K", "--nproc", "2"], tmp_path)
    assert "collectives: 2 ranks, gloo, float32" in done.stdout
    assert done.stdout.splitlines()[-1].split()[:2] == ["broadcast", "1,024"]
    done = run([*BENCH, "--nproc", "2", "--backend", "xccl"], tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.count("--backend xccl is not available") == 1
