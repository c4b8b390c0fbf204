"""A DeepSpeed engine: its flops profile is written to prof/profiler_ds.txt. Run: python examples/deepspeed_engine.py

Needs deepspeed (pip install --no-build-isolation deepspeed, after torch). Runs on a CPU too.
"""

import os

# For a single process; a launcher sets these.
os.environ.setdefault("DS_ACCELERATOR", "cpu")
for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
    os.environ.setdefault(name, value)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29511")

import deepspeed  # noqa: E402
import torch  # noqa: E402

import rankscope  # noqa: E402


def main() -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        config={"train_micro_batch_size_per_gpu": 4},
    )
    with rankscope.profile(
        "prof", model=engine, schedule=rankscope.schedule(wait=1, warmup=1, active=3)
    ) as prof:
        for _ in range(8):
            engine.backward(engine(torch.randn(4, 64)).square().mean())
            engine.step()
            prof.step()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
