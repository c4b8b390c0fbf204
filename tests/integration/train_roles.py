"""One role of a job in which rollout, reward and training take turns, as in reinforcement learning.

train_roles.py FOLDER ROLE [--cycles N]

The roles wait for each other at pipes of FOLDER. It knows nothing of rankscope but mark_step.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch_standin"))
import torch  # noqa: F401  (what rankscope waits for)

import rankscope

SECONDS = {"rollout": 0.1, "reward": 0.02, "training": 0.04}
"""CPU time of each role in a cycle. It takes turns in this order."""
BATCHES = 2
"""Of the training, in each cycle."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("role", choices=list(SECONDS))
    parser.add_argument("--cycles", type=int, default=30)
    args = parser.parse_args()
    roles = list(SECONDS)
    following = roles[(roles.index(args.role) + 1) % len(roles)]
    # Open for both: neither end has to be there.
    mine, others = (os.open(args.folder / name, os.O_RDWR) for name in (args.role, following))
    batches = BATCHES if args.role == "training" else 1
    for _ in range(args.cycles):
        os.read(mine, 1)
        for _ in range(batches):
            work(SECONDS[args.role] / batches)
            rankscope.mark_step()
        os.write(others, b"x")


def work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


if __name__ == "__main__":
    main()
