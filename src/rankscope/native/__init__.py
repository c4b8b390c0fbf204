"""The parts that are written in C, where they could be built. Without them reading is slower, and XLA's .xplane.pb is
not read (readers.base.need_c_parts).

The package is installed without them where there is no compiler (hatch_build.py). RANKSCOPE_NATIVE=0 turns them off,
to compare.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

functions: Any = None
"""The extension module; None where it was not built, or is turned off."""
if os.environ.get("RANKSCOPE_NATIVE") != "0":
    try:
        functions = import_module("rankscope.native._native")
    except ImportError:
        functions = None


def release_memory(events: int) -> None:
    """Give memory that was freed back to the system. The C library keeps what was freed in small parts, which the large
    arrays of many events do not fit into."""
    if functions is not None and events > 1 << 20:
        functions.release_memory()
