"""The tables that `profile --stats=LIST` prints when the job has ended, as options of `rankscope stats`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby

from rankscope.capture.launcher_command import own_command
from rankscope.errors import UsageError
from rankscope.text.spelling import RENAMED_REPORTS

_NSYS = "nsys:"
_LIBRARIES = ("duckdb", "numpy", "isal", *(() if sys.version_info >= (3, 14) else ("backports.zstd",)))


def missing_libraries() -> list[str]:
    """What reading traces needs and capturing does not: a training image may lack it."""
    missing = []
    for name in _LIBRARIES:
        try:
            missing += [] if importlib.util.find_spec(name) else [name]
        except ModuleNotFoundError:  # of the package that it is in
            missing.append(name)
    return missing


def end_tables(text: str, tool_path: Sequence[str] = ()) -> list[list[str]]:
    """The options of each call of `rankscope stats`; for "true" the summary. ``tool_path``: --nsys=PATH or --ncu=PATH.

    >>> end_tables("kernels,ncu,nsys:cuda_gpu_kern_sum")
    [['-r', 'kernels,ncu'], ['--compat', 'nsys', '-r', 'cuda_gpu_kern_sum']]
    """
    if text == "true":
        return [[*tool_path]]
    names = [name.strip() for name in text.split(",") if name.strip()]
    calls = []
    for of_nsys, same in groupby(names or [""], lambda name: name.startswith(_NSYS)):
        peer = ["--compat", "nsys"] if of_nsys else []
        wanted = [name.removeprefix(_NSYS) for name in same]
        # A process of its own lists the reports: it needs libraries that the job may lack.
        words = [*own_command(), "stats", ".", "-r", "list", *peer]
        listed = "" if missing_libraries() else subprocess.run(words, capture_output=True, text=True).stdout
        reports = [line.split()[0] for line in listed.splitlines() if line.strip()]
        known = ("all", *reports, *(() if peer else RENAMED_REPORTS))
        if reports and (wrong := next((name for name in wanted if name not in known), None)) is not None:
            raise UsageError(
                f"--stats: there is no table '{wrong}'",
                why=f"There are: {', '.join(reports)}.",
                hint=f"See: rankscope stats RUN {' '.join([*peer, '-r list'])}",
            )
        calls.append([*peer, "-r", ",".join(wanted), *tool_path])
    return calls
