"""A job that runs for about five minutes, to be watched; docs/watch.md shows it. In two terminals:

rankscope profile --watch -o watched torchrun --nproc-per-node 4 examples/watch_me.py
rankscope watch watched

Rank 0 evaluates after every 50th step, as many jobs do: that is no alarm. In the second minute rank 2 reads its data
from slow storage, and in the fourth one rank 1 collects garbage after every third step. A number of seconds as argument
makes it shorter or longer.
"""

import gc
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
BATCH = 16


class Samples(Dataset):
    """Reading a batch takes rank 2 about 30 ms more while its storage is slow."""

    delay = 0.0

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.delay)
        return torch.full((256,), index % 7 / 7)


def main() -> None:
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = torch.distributed.get_rank()
    layers = [
        torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
    ] * 6
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    samples, garbage, objects = Samples(), False, []
    minute = torch.zeros(1)
    started = time.monotonic()
    for step, batch in enumerate(DataLoader(samples, batch_size=BATCH)):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.03)  # a larger model
        if rank == 0 and step % 50 == 49:
            with torch.no_grad():
                for _ in range(20):
                    model.module(batch)
        if garbage and step % 3 == 0:
            gc.collect()
        if step % 20 == 0:  # all ranks change at the same step
            minute[0] = 5 * (time.monotonic() - started) / SECONDS
            torch.distributed.broadcast(minute, 0)
            samples.delay = 0.002 if rank == 2 and 1 <= minute < 2 else 0.0
            garbage = rank == 1 and 3 <= minute < 4
            if garbage and not objects:
                objects = [[number] for number in range(500_000)]
            if minute >= 5:
                break
    # torch 2.13 hangs now and then where gloo's thread still holds the last all-reduce when its group ends.
    time.sleep(0.5)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
