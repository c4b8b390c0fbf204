"""A job in which one rank reads its data from slow storage; docs/slow-job.md finds it. Run:

rankscope profile --ranks all -o run torchrun --nproc-per-node 4 examples/slow_rank.py

With --fixed every rank reads equally fast.
"""

import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SLOW_RANK = None if "--fixed" in sys.argv else 2


class Samples(Dataset):
    """Rank 2 takes about 60 ms longer than the others to read a batch of 16."""

    def __init__(self, rank: int) -> None:
        self.delay = 0.004 if rank == SLOW_RANK else 0.0

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.delay)
        return torch.full((256,), float(index))


def main() -> None:
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = torch.distributed.get_rank()
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for batch in DataLoader(Samples(rank), batch_size=16):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    # torch 2.13 hangs now and then where gloo's thread still holds the last all-reduce when its group ends.
    time.sleep(0.5)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
