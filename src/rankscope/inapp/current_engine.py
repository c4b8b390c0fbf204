"""The one engine of this process, if it is captured, and how a program tells it that a step has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.inapp.engine import Engine

_engine: Engine | None = None


def set_engine(engine: Engine | None) -> None:
    global _engine
    _engine = engine


def current_engine() -> Engine | None:
    """What captures this process: `rankscope profile` in front of it, or rankscope.profile inside it."""
    return _engine


def mark_step() -> None:
    """A step has ended. For loops without an optimizer, under `rankscope profile`.

    Costs nothing where nothing is captured. From the first call on only these calls count as steps.
    """
    if _engine is not None:
        _engine.mark_step()
