"""The decoder of a trace's packets: in C where it was built (native/perfetto.c), else in Python."""

from __future__ import annotations

from rankscope.readers.perfetto.decoder import Cut, Index, Plan, Rewriter
from rankscope.readers.perfetto.decoder import cut as cut

__all__ = ["Cut", "Index", "Plan", "Rewriter", "cut"]
