"""The short name of rankscope.integrations.ray."""

from rankscope.integrations.ray import Callback, on_worker_start, start

__all__ = ["Callback", "on_worker_start", "start"]
