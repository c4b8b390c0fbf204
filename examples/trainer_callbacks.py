"""Trainers that run the loop: Hugging Face's and Lightning's callbacks. Run: python examples/trainer_callbacks.py

The two small trainers below call the same methods as the real ones. With the real ones, pass them the same callbacks.
"""

from collections.abc import Callable
from typing import Any

import torch

import rankscope


def make_step() -> Callable[[], None]:
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def train_like_hugging_face(callback: Any, steps: int = 8) -> None:
    step = make_step()
    state = (None, None, None)  # TrainingArguments, TrainerState, TrainerControl
    callback.on_train_begin(*state)
    for _ in range(steps):
        step()
        callback.on_step_end(*state)
    callback.on_train_end(*state)


def train_like_lightning(callback: Any, steps: int = 8) -> None:
    step = make_step()
    trainer, module = None, None
    callback.on_train_start(trainer, module)
    for index in range(steps):
        step()
        callback.on_train_batch_end(trainer, module, None, None, index)
    callback.on_train_end(trainer, module)


def main() -> None:
    cycle = rankscope.schedule(wait=1, warmup=1, active=3)
    hugging_face = rankscope.profile("prof-hf", schedule=cycle, name="hf")
    train_like_hugging_face(rankscope.trainer_callback(hugging_face))
    lightning = rankscope.profile("prof-lightning", schedule=cycle, name="lightning")
    train_like_lightning(rankscope.lightning_callback(lightning))
    print("trained twice")


if __name__ == "__main__":
    main()
