"""Train a small language model: it reads the source files of Python's standard library and predicts the next byte.

DistributedDataParallel, on GPUs where there are enough, else on CPUs. Started by torchrun, or by Open MPI's mpirun with
MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (the usual name)
from torch.nn.parallel import DistributedDataParallel

STEPS = 12
BYTES = 256
# The variables of torchrun, and of Open MPI.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
)
# width, layers, heads, length of a text, texts a step
GPU_SIZES = (768, 8, 12, 512, 16)
CPU_SIZES = (64, 2, 4, 64, 4)


class LanguageModel(nn.Module):  # type: ignore[misc]  # rankscope is checked without torch
    """A transformer in which every byte sees the bytes before it."""

    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.next_byte = nn.Linear(width, BYTES)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        seen = self.bytes(text) + self.places(torch.arange(length, device=text.device))
        predicted: torch.Tensor = self.next_byte(self.layers(seen, mask=mask, is_causal=True))
        return predicted


def library_text() -> torch.Tensor:
    """The standard library's larger files, as one row of bytes: text that every image with Python has."""
    folder = Path(os.__file__).parent
    files = (folder / f"{name}.py" for name in ("argparse", "inspect", "pickle", "tarfile", "typing"))
    return torch.tensor(list(b"\n".join(path.read_bytes() for path in files if path.exists())))


def place() -> tuple[int, int, int, int]:
    """Rank, number of ranks, and both on this node."""
    names = next(names for names in LAUNCHERS if names[-1] in os.environ)
    rank, world, local_rank, local_size = (int(os.environ[name]) for name in names)
    return rank, world, local_rank, local_size


def main() -> None:
    rank, world, local_rank, local_size = place()
    on_gpus = torch.cuda.device_count() >= local_size
    device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if on_gpus else "gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    width, layers, heads, length, texts = GPU_SIZES if on_gpus else CPU_SIZES
    model = DistributedDataParallel(LanguageModel(width, layers, heads, length).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    library = library_text()
    torch.manual_seed(1 + rank)  # every rank reads other places
    for step in range(STEPS):
        starts = torch.randint(len(library) - length - 1, (texts,)).tolist()
        batch = torch.stack([library[start : start + length + 1] for start in starts]).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpus):
            predicted = model(batch[:, :-1])
            loss = F.cross_entropy(predicted.flatten(0, 1).float(), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step in (0, STEPS - 1):
            sys.stdout.write(f"step {step}: {loss.item():.2f} nats a byte\n")
            sys.stdout.flush()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
