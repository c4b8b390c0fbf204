"""What several integration tests need: a private Slurm."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.jobs import environment

PRIVATE_SLURM = Path(__file__).with_name("private-slurm")


@pytest.fixture
def slurm(slurm_folder: Path) -> Iterator[dict[str, str]]:
    """The variables of a private two-node Slurm, which belongs to one test at a time: its nodes are two cores."""
    with _locked(slurm_folder / "test.lock"):
        yield environment(SLURM_CONF=str(slurm_folder / "slurm.conf"))


@pytest.fixture(scope="session")
def slurm_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One Slurm for all of pytest-xdist's processes: the first that needs it starts it, the last ends it."""
    if not PRIVATE_SLURM.exists():
        pytest.skip(f"{PRIVATE_SLURM} is not there")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    ours = tmp_path_factory.getbasetemp()
    folder = (ours.parent if worker else ours) / "slurm"
    users = folder / "users"
    users.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "users.lock"):
        up = any(users.iterdir()) or _private_slurm("up", folder)
        (users / f"process-{worker}").touch()
    try:
        if not up:
            pytest.skip(f"{PRIVATE_SLURM} up failed (it needs root)")
        yield folder
    finally:
        with _locked(folder / "users.lock"):
            (users / f"process-{worker}").unlink()
            if not any(users.iterdir()):
                _private_slurm("down", folder)


def _private_slurm(verb: str, folder: Path) -> bool:
    words = [str(PRIVATE_SLURM), verb, str(folder)]
    env = environment(SLURM_TEST_PORT=str(20000 + int(time.time()) % 20000))
    quiet = subprocess.DEVNULL
    return not subprocess.run(words, env=env, stdout=quiet, stderr=quiet, timeout=60, check=False).returncode


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
