"""Ranks that a script starts itself with multiprocessing's spawn, such as torch.multiprocessing.spawn.

The script's environment is clean by then (0130), so the plan is put into it while such a child is started. Most of
them are workers: a child becomes a rank when it joins a process group.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from typing import Any

from rankscope.inapp.import_hooks import after_import

CHILD = "--multiprocessing-fork"
"""In the command line of such a child."""

_MODULE = "multiprocessing.popen_spawn_posix"


def pass_on(variables: Mapping[str, str]) -> None:
    """Start multiprocessing's children with these variables, which this process need not keep."""

    def watch() -> None:
        popen: Any = sys.modules[_MODULE].Popen
        original = popen._launch

        @functools.wraps(original)
        def launch(child: Any, process: Any) -> None:
            before = {name: os.environ.get(name) for name in variables}
            os.environ.update(variables)
            try:
                original(child, process)
            finally:
                for name, value in before.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value

        popen._launch = launch

    after_import(_MODULE, watch)
