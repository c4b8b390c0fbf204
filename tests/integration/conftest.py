"""What several integration tests need: a private Slurm."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.jobs import environment

PRIVATE_SLURM = Path(__file__).resolve().parents[3] / "shared" / "tools" / "private-slurm"


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A private two-node Slurm; its variables."""
    if not PRIVATE_SLURM.exists():
        pytest.skip(f"{PRIVATE_SLURM} is not there")
    folder = tmp_path_factory.mktemp("slurm")
    port = 20000 + int(time.time()) % 20000
    env = environment(SLURM_TEST_PORT=str(port))
    up = subprocess.run(
        [str(PRIVATE_SLURM), "up", str(folder)],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    try:
        if up.returncode:
            pytest.skip(f"{PRIVATE_SLURM} up failed with {up.returncode} (it needs root)")
        yield {**env, "SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run([str(PRIVATE_SLURM), "down", str(folder)], env=env, timeout=60, check=False)
