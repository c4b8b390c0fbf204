"""Fakes of torch._dynamo and torch._inductor for jobs that compile nothing: the real ones take every process seconds
of CPU to import.

Optimizers, DistributedDataParallel, checkpoints and torch.profiler import them to tell them something; these are all
their calls.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


def _unchanged(function: Any, *_: Any, **__: Any) -> Any:
    return function


def _fake(name: str, **content: Any) -> ModuleType:
    module = ModuleType(f"torch.{name}")
    module.__dict__.update(content, __path__=[])
    sys.modules[module.__name__] = module
    return module


torch._dynamo = _fake(
    "_dynamo",
    graph_break=lambda: None,
    disable=_unchanged,
    utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    trace_rules=SimpleNamespace(clear_lru_cache=lambda: None),
    config=SimpleNamespace(error_on_nested_fx_trace=False),
)
_config = _fake("_inductor.config", triton=SimpleNamespace(cudagraphs=False))
torch._inductor = _fake("_inductor", config=_config)
