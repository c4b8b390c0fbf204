"""Train a small GPT on random tokens. An ordinary training script, without rankscope in it.

python examples/gpt_train.py --steps 20
rankscope profile python examples/gpt_train.py --steps 20
rankscope profile torchrun --nproc-per-node 2 examples/gpt_train.py --steps 20
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (the usual name)


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a layer norm."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, dim))
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, dim: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(positions))))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def parse_args(words: list[str] | None = None) -> argparse.Namespace:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dim", type=int, default=768 if cuda else 64)
    parser.add_argument("--heads", type=int, default=12 if cuda else 4)
    parser.add_argument("--length", type=int, default=1024 if cuda else 32)
    parser.add_argument("--batch", type=int, default=8 if cuda else 4)
    parser.add_argument("--vocabulary", type=int, default=50304 if cuda else 1024)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--timings", type=Path, help="write the seconds of each step to this file, as JSON")
    return parser.parse_args(words)


def train(args: argparse.Namespace, after_step: Callable[[int], None] = lambda step: None) -> list[float]:
    """Train, and return how long each step took."""
    torch.manual_seed(1337)
    local_rank, local_ranks = (int(os.environ.get(name, "0")) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    gpus = torch.cuda.device_count() if args.device == "cuda" else 0
    device = torch.device(args.device, local_rank % gpus if gpus else None)
    if distributed:
        # Ranks that share a GPU cannot use NCCL.
        torch.distributed.init_process_group("nccl" if gpus >= local_ranks > 0 else "gloo")
    model: nn.Module = GPT(args.vocabulary, args.length, args.dim, args.heads, args.layers).to(device)
    if distributed:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    seconds = []
    for step in range(args.steps):
        began = time.perf_counter()
        text = torch.randint(args.vocabulary, (args.batch, args.length + 1)).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(text[:, :-1], text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        seconds.append(time.perf_counter() - began)
        after_step(step)
        if step % 10 == 0:
            print(f"step {step}: loss {value:.3f}, {1000 * seconds[-1]:.1f} ms", flush=True)
    if distributed:
        torch.distributed.destroy_process_group()
    return seconds


def main() -> None:
    args = parse_args()
    seconds = train(args)
    if args.timings:
        args.timings.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
