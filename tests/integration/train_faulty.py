"""A job of gloo ranks in which rank 1 has a fault from a step on. It knows nothing of rankscope.

torchrun train_faulty.py FAULT --at STEP --steps N

Most of a step is sleep, so that a busy machine disturbs it little.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import fake_compiler  # noqa: F401
import torch
from torch import distributed

STEP_S = 0.15
MORE_S = 0.1


class Samples(torch.utils.data.Dataset[torch.Tensor]):  # type: ignore[misc]
    def __init__(self, steps: int, slow_from: int) -> None:
        self.steps, self.slow_from = steps, slow_from

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(MORE_S if index >= self.slow_from else 0)
        return torch.ones(4, 16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "fault", choices=("none", "compute", "sleep", "data", "spike", "leak", "node", "hang")
    )
    parser.add_argument("--at", type=int, default=30)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    has_fault = int(os.environ["GROUP_RANK"]) == 1 if args.fault == "node" else rank == 1
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = Samples(args.steps, args.at if has_fault and args.fault == "data" else args.steps)
    kept: list[bytearray] = []
    for step, inputs in enumerate(torch.utils.data.DataLoader(samples, batch_size=None)):
        time.sleep(STEP_S)
        if has_fault and step >= args.at:
            disturb(args.fault, step == args.at, kept)
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    time.sleep(0.5)  # torch may deadlock when the model is freed while gloo ends its last collective
    distributed.destroy_process_group()


def disturb(fault: str, first: bool, kept: list[bytearray]) -> None:
    if fault in ("sleep", "node"):
        time.sleep(MORE_S)
    elif fault == "compute":
        end = time.thread_time() + MORE_S
        while time.thread_time() < end:
            pass
    elif fault == "leak":
        kept.append(bytearray(b"x" * (6 << 20)))
    elif fault == "spike" and first:
        time.sleep(1)
    elif fault == "hang":
        time.sleep(3600)


if __name__ == "__main__":
    main()
