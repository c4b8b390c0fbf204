"""A private Slurm for the integration tests."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import locked
from integration.jobs import environment

PRIVATE_SLURM = Path(__file__).with_name("private-slurm")


@pytest.fixture
def slurm(slurm_folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a private two-node Slurm. One test uses it at a time: its nodes are the same machine."""
    with locked(slurm_folder / "test.lock"):
        yield environment(SLURM_CONF=str(slurm_folder / "slurm.conf"))


@pytest.fixture(scope="session")
def slurm_folder(session_folder: Path) -> Iterator[Path]:
    """One Slurm for all processes of pytest-xdist: the first that needs it starts it, the last one stops it."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    folder = session_folder / "slurm"
    users = folder / "users"
    users.mkdir(parents=True, exist_ok=True)
    with locked(folder / "users.lock"):
        up = any(users.iterdir()) or _private_slurm("up", folder)
        (users / f"process-{worker}").touch()
    try:
        if not up:
            pytest.skip("tests/integration/private-slurm up failed (it needs root)")
        yield folder
    finally:
        with locked(folder / "users.lock"):
            (users / f"process-{worker}").unlink()
            if not any(users.iterdir()):
                _private_slurm("down", folder)


def _private_slurm(verb: str, folder: Path) -> bool:
    words = [str(PRIVATE_SLURM), verb, str(folder)]
    env = environment(SLURM_TEST_PORT=str(_free_ports(3)))
    quiet = subprocess.DEVNULL
    return not subprocess.run(words, env=env, stdout=quiet, stderr=quiet, timeout=60, check=False).returncode


def _free_ports(count: int) -> int:
    """The first of some consecutive ports that nothing listens on, below those that the kernel hands out."""
    for first in range(20_000 + os.getpid() % 5_000, 32_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")
