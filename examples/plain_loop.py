"""A plain training loop with rankscope.profile. Run: python examples/plain_loop.py

Writes ./prof: the trace (plain_loop-0-of-1.json) and profiler_list.dat. Then: rankscope stats prof
"""

import torch

import rankscope


@rankscope.trace  # a named range in the trace
def make_batch(size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 64), torch.randn(size, 1)


def main() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    timers = rankscope.Timers()
    # Step 0 is idle, step 1 warms the profiler up, steps 2 to 4 are recorded.
    with rankscope.profile("prof", schedule=rankscope.schedule(wait=1, warmup=1, active=3)) as prof:
        for _ in range(8):
            inputs, targets = make_batch()
            with timers("forward-backward"):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    timers.log(per=8)


if __name__ == "__main__":
    main()
