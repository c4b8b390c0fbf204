"""The short name of rankscope.integrations.accelerate."""

from rankscope.integrations.accelerate import Tracker

__all__ = ["Tracker"]
