"""Two DeepSpeed engines on CPUs, with ZeRO 1 and ZeRO 2, as an actor and its critic: each with two parameter groups, so
that it calls its optimizer twice a step, and two micro-batches a step."""

import sys
from typing import Any

import deepspeed
import torch

MICRO_BATCHES = 2
STEPS = 6
# Gloo alone: compiling DeepSpeed's own operator takes two minutes.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]


def make_engine(stage: int) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": 0.0}]
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_optimization": {"stage": stage},
    }
    return deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups), config=config)[0]


engines = [make_engine(stage=1), make_engine(stage=2)]
for _ in range(STEPS):
    for engine in engines:
        for _ in range(MICRO_BATCHES):
            engine.backward(engine(torch.randn(4, 16)).sum())
            engine.step()
for engine in engines:
    print(f"ZeRO {engine.zero_optimization_stage()}: {engine.global_steps} steps", flush=True)
