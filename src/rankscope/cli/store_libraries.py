"""The libraries that reading traces needs and capturing does not: a training image may lack them."""

from __future__ import annotations

import importlib.util

_LIBRARIES = ("duckdb", "numpy", "isal")


def missing_libraries() -> list[str]:
    return [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
