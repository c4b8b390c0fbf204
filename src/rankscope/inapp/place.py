"""This process's place in its job, asked from inside."""

from __future__ import annotations

import os

from rankscope.capture.rank import Identity, detect


def current_identity() -> Identity:
    """torch.distributed knows best, where it is up; else the launcher's variables."""
    import torch

    found = detect(os.environ)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return found
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if (found.rank, found.world_size) == (rank, world):
        return found
    return Identity(rank, None, world, None, None, "torch.distributed")
