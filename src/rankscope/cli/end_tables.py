"""The tables that `profile --stats=LIST` prints when the job has ended, as options of `rankscope stats`."""

from __future__ import annotations

from itertools import groupby

from rankscope.cli.store_libraries import missing_libraries
from rankscope.errors import UsageError

_NSYS = "nsys:"


def end_tables(text: str) -> list[list[str]]:
    """The options of each call of `rankscope stats`; for "true" one without any: the summary.

    >>> end_tables("kernels,ncu,nsys:cuda_gpu_kern_sum")
    [['-r', 'kernels,ncu'], ['--compat', 'nsys', '-r', 'cuda_gpu_kern_sum']]
    """
    if text == "true":
        return [[]]
    names = [name.strip() for name in text.split(",") if name.strip()]
    _check(names)
    calls = []
    for of_nsys, same in groupby(names, lambda name: name.startswith(_NSYS)):
        wanted = ",".join(name.removeprefix(_NSYS) for name in same)
        calls.append([*(["--compat", "nsys"] if of_nsys else []), "-r", wanted])
    return calls


def _check(names: list[str]) -> None:
    """Refuse a name that is no report. The list of reports needs the libraries of the store."""
    if missing_libraries():
        return
    from rankscope.analysis import REPORTS
    from rankscope.analysis.compat import COMPAT

    known = [*REPORTS, "all", *(f"{_NSYS}{name}" for name in COMPAT["nsys"])]
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None or not names:
        of_nsys = wrong is not None and wrong.startswith(_NSYS)
        like = [name for name in known if name.startswith(_NSYS) == of_nsys]
        raise UsageError(
            f"--stats={wrong or ''}: there is no such table",
            why=f"There are: {', '.join(like)}.",
            hint="See: rankscope stats -r list, or for nsys:REPORT, rankscope stats --compat nsys -r list",
        )
