"""A range that nsys and ncu wait for, around the part of a loop that matters. Run on a GPU:

rankscope profile --tool nsys -c cudaProfilerApi -o run python examples/profiler_range.py
rankscope profile --tool ncu -c cudaProfilerApi -o run python examples/profiler_range.py

Only what runs inside the range is recorded; without a profiler, or without a GPU, the loop runs as it is.
"""

import torch

import rankscope


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(256, 256, device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(6):
        loss = model(torch.randn(32, 256, device=device)).square().mean()
        loss.backward()
        if step == 4:  # warm by then; nsys records the first range, ncu every one
            with rankscope.cuda_profiler_range():
                optimizer.step()
        else:
            optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
