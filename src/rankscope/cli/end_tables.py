"""The tables that `profile --stats=LIST` prints when the job has ended, as options of `rankscope stats`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from itertools import groupby

from rankscope.capture.launcher_command import own_command
from rankscope.cli.store_libraries import missing_libraries
from rankscope.errors import UsageError
from rankscope.text.spelling import RENAMED_REPORTS

_NSYS = "nsys:"


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
        _check(wanted, peer)
        calls.append([*peer, "-r", ",".join(wanted), *tool_path])
    return calls


def _check(names: list[str], peer: list[str]) -> None:
    """Refuse a name that is no report. A process of its own lists them: it needs libraries that the job may lack."""
    if missing_libraries():
        return
    words = [*own_command(), "stats", ".", "-r", "list", *peer]
    listed = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    renamed = () if peer else RENAMED_REPORTS
    reports = [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]
    wrong = next((name for name in names if name not in ("all", *reports, *renamed)), None)
    if wrong is not None and reports:
        raise UsageError(
            f"--stats: there is no table '{wrong}'",
            why=f"There are: {', '.join(reports)}.",
            hint=f"See: rankscope stats RUN {' '.join([*peer, '-r list'])}",
        )
