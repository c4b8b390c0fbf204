"""A small training script without any use of rankscope. Every launcher test runs it."""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import fake_compiler  # noqa: F401
import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--optimizer", default="SGD")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--worker-context", choices=["fork", "spawn"])
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--echo-stdin", action="store_true")
    parser.add_argument("--local_rank", type=int, help="deepspeed gives it")
    args = parser.parse_args()

    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    if args.ddp:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(4 * args.steps, 16), torch.randn(4 * args.steps, 1))
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, num_workers=args.workers, multiprocessing_context=args.worker_context
    )
    if args.echo_stdin:
        print("stdin:", sys.stdin.read().strip(), flush=True)
    for step, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        if args.step_seconds:
            print(f"step {step}", flush=True)
            time.sleep(args.step_seconds)
    print(f"done rank {os.environ.get('RANK', '-')} pid {os.getpid()}", flush=True)
    if args.ddp:
        # Its destructor waits, with the GIL, for gloo's thread, which may want the GIL to let go of the last result.
        time.sleep(0.2)
        torch.distributed.destroy_process_group()
    sys.exit(args.exit_code)


if __name__ == "__main__":
    main()
