"""DistributedDataParallel over gloo; every rank writes its own trace into ./prof. Run:

torchrun --nproc-per-node 2 examples/ddp_gloo.py
"""

import sys

import torch
from torch.nn.parallel import DistributedDataParallel

import rankscope


def main() -> None:
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(torch.distributed.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    timers = rankscope.Timers()
    folder = sys.argv[1] if len(sys.argv) > 1 else "prof"
    cycle = rankscope.schedule(wait=1, warmup=1, active=3)
    with rankscope.profile(folder, schedule=cycle) as prof:  # after init_process_group: the rank is known
        for _ in range(8):
            with timers("step"):
                model(torch.randn(16, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            prof.step()
    timers.log(per=8)  # mean, min and max over all ranks
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
