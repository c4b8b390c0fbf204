"""The short name of rankscope.integrations.environment."""

from rankscope.integrations.environment import start

__all__ = ["start"]
