"""A job of several gloo ranks that can be made slow or stuck. It knows nothing of rankscope.

torchrun train_watched.py [--until FILE] [--steps N] [--slow RANK] [--hang RANK] [--spawn N]
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--until", type=Path, help="stop when this file is there")
    parser.add_argument("--slow", type=int, help="this rank sleeps 30 ms in each step, the others 10 ms")
    parser.add_argument("--hang", type=int, help="from step 5 on this rank does nothing until --until")
    parser.add_argument("--spawn", type=int, help="start so many ranks with torch.multiprocessing.spawn")
    args = parser.parse_args()
    if args.spawn:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PET_MASTER_PORT"])
        torch.multiprocessing.spawn(spawned, (args,), nprocs=args.spawn)
        print("spawned ranks have ended", flush=True)
    else:
        distributed.init_process_group("gloo")
        train(args)


def spawned(rank: int, args: argparse.Namespace) -> None:
    distributed.init_process_group("gloo", rank=rank, world_size=args.spawn)
    train(args)


def train(args: argparse.Namespace) -> None:
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(4 * args.steps, 16))
    for step, (inputs,) in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
        time.sleep(0.03 if rank == args.slow else 0.01)
        if rank == args.hang and step == 5:
            stand_still(args.until)
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}", flush=True)
        if _agreed(args.until is not None and args.until.exists()):
            break
    time.sleep(0.2)
    distributed.destroy_process_group()


def stand_still(until: Path) -> None:
    while not until.exists():
        time.sleep(0.05)


def _agreed(over: bool) -> bool:
    """Whether any rank wants to stop, so that all make the same number of steps."""
    answer = torch.tensor(int(over))
    distributed.all_reduce(answer)
    return bool(answer)


if __name__ == "__main__":
    main()
