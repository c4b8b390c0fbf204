"""cudaProfilerStart and cudaProfilerStop around a chunk: what `nsys -c cudaProfilerApi` and ncu wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rankscope.inapp.job_log import Voice
from rankscope.inapp.place import current_identity


@contextmanager
def cuda_profiler_range() -> Iterator[None]:
    """Only what runs inside is captured, where the profiler was told to wait for it.

    The device is waited for at both ends, so that no kernel launched before or inside ends up on the wrong
    side. Without a CUDA device one line says that nothing is marked, and the chunk runs.
    """
    import torch

    if not torch.cuda.is_available():
        voice = Voice(current_identity().rank, speaks=True, quiet=False, verbose=False)
        voice.fail("cuda_profiler_range marks nothing: there is no CUDA device")
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
