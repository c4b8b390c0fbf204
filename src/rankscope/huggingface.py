"""The short name of rankscope.integrations.huggingface."""

from rankscope.integrations.huggingface import Callback

__all__ = ["Callback"]
