"""The parts that are written in C, where they could be built. Without them reading is slower, and two formats are not
read (readers.base.need_c_parts).

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
