"""--nproc N: start N ranks on this machine, without a launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from rankscope.capture.rank import SINGLE, detect
from rankscope.errors import UsageError
from rankscope.host import usable_cores

# When one rank has failed, the others are terminated after this time.
_GRACE_S = 5.0
_POLL_S = 0.02


def run_ranks(words: Sequence[str], ranks: int) -> int:
    """Run ``python -m rankscope WORDS`` once per rank. Returns 0 or the exit code of the first that failed."""
    identity = detect(os.environ)
    if identity.source != SINGLE:
        raise UsageError(
            f"--nproc {ranks} inside a launcher",
            why=f"This is rank {identity.rank} of a job that {identity.source} started.",
            hint="Leave --nproc out: the launcher starts the ranks.",
        )
    command = [sys.executable, "-m", "rankscope", *words]
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, usable_cores() // ranks))
    children = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                "OMP_NUM_THREADS": threads,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
            },
        )
        for rank in range(ranks)
    ]

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    # The terminal sends SIGINT to the whole process group; SIGTERM reaches only this process.
    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        return _wait(children)
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> int:
    failed_at: float | None = None
    first_code = 0
    while True:
        codes = [child.poll() for child in children]
        bad = [code for code in codes if code]
        if bad and failed_at is None:
            failed_at, first_code = time.monotonic(), bad[0]
        if None not in codes:
            return first_code if first_code >= 0 else 128 - first_code
        if failed_at is not None and time.monotonic() - failed_at > _GRACE_S:
            for child in children:
                if child.poll() is None:
                    child.terminate()
            failed_at = float("inf")
        time.sleep(_POLL_S)
