"""The parts that are written in C, where they could be built. Without them reading is slower, and two formats are not
read (`needed_for`).

The package is installed without them where there is no compiler (hatch_build.py). RANKSCOPE_NATIVE=0 turns them off,
to compare.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from rankscope.errors import ReadError

functions: Any = None
"""The extension module; None where it was not built, or is turned off."""
if os.environ.get("RANKSCOPE_NATIVE") != "0":
    try:
        functions = import_module("rankscope.native._native")
    except ImportError:
        functions = None


def needed_for(path: Path) -> Any:
    """The functions in C, for a file of a format that nothing else reads."""
    if functions is None:
        raise ReadError(
            f"{path} is not read: this installation has no C parts",
            why="Perfetto traces and XLA's .xplane.pb are read in C only. There was no compiler when rankscope was "
            "installed, Python is older than 3.11, or RANKSCOPE_NATIVE=0 is set.",
            hint="Install a wheel of rankscope for this platform; or install a C compiler, then: "
            "pip install --force-reinstall --no-binary rankscope rankscope",
        )
    return functions
