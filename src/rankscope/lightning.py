"""The short name of rankscope.integrations.lightning."""

from rankscope.integrations.lightning import Profiler, callbacks, fabric_callbacks

__all__ = ["Profiler", "callbacks", "fabric_callbacks"]
