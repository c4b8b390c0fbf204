"""Train a small language model with one framework, without any use of rankscope: hf, lightning, fsdp2 or ddp.

`ddp` runs under torchrun, over gloo, several ranks on one GPU; the others are one process. No data is downloaded.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch

STEPS = 8
VOCABULARY, LENGTH, BATCH = 8192, 512, 8


def language_model() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel  # type: ignore[import-not-found]

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=512, n_layer=4, n_head=8)
    model: torch.nn.Module = GPT2LMHeadModel(config)
    return model


class Tokens(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


def train_hf(steps: int = STEPS, after_step: Callable[[int], None] | None = None) -> None:
    """`after_step` is called with the number of each step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class AfterStep(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if after_step is not None:
                after_step(state.global_step - 1)

    arguments = TrainingArguments(
        output_dir="/tmp/hf", max_steps=steps, per_device_train_batch_size=BATCH, bf16=torch.cuda.is_available(),
        report_to=[], save_strategy="no", logging_steps=1000,
    )  # fmt: skip
    trainer = Trainer(model=language_model(), args=arguments, train_dataset=Tokens(), callbacks=[AfterStep()])
    trainer.train()


def train_lightning() -> None:
    import pytorch_lightning  # type: ignore[import-not-found]

    class Module(pytorch_lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = language_model()

        def training_step(self, batch: Any, _index: int) -> Any:
            return self.model(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    trainer = pytorch_lightning.Trainer(
        max_steps=STEPS, accelerator="gpu", devices=1, precision="bf16-mixed", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(Tokens(), batch_size=BATCH))


def train_loop(model: Any, rank: int = 0) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(Tokens(), batch_size=BATCH)
    for batch in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**{name: value.cuda() for name, value in batch.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    print(f"rank {rank} loss {loss.item():.3f}", flush=True)


def train_fsdp2() -> None:
    from torch.distributed.fsdp import fully_shard

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    model: Any = language_model().cuda()
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    train_loop(torch.compile(model))
    torch.distributed.destroy_process_group()


def train_ddp() -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    train_loop(torch.nn.parallel.DistributedDataParallel(language_model().cuda()), rank)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=["hf", "lightning", "fsdp2", "ddp"])
    {"hf": train_hf, "lightning": train_lightning, "fsdp2": train_fsdp2, "ddp": train_ddp}[
        parser.parse_args().framework
    ]()
