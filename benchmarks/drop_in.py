"""Does a script run under rankscope's profiler as under torch's? python benchmarks/drop_in.py SCRIPT [ARGUMENT …]

The script runs unchanged, in the current folder: alone, inside `with torch.profiler.profile():` and inside
`with rankscope.profile():`. Compared are the exit status, what it prints (without times) and how often each op ran.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_WAYS = ("alone", "torch", "rankscope")
_TIMES = re.compile(r"\d+(\.\d+)?\s*m?s\b|ms/batch\s+[\d.]+|mfu\s+-?[\d.]+%|[\d.]+it/s")


def main() -> int:
    """One row for each way; 0 when rankscope's is as torch's."""
    results = {way: _run(way, sys.argv[1:]) for way in _WAYS}
    print(f"{'':10} {'exit':>5} {'output':>7} {'ops':>9} {'wall':>8}")
    for way, (status, text, counts, wall_s) in results.items():
        equal = "same" if text == results["alone"][1] else "differs"
        print(f"{way:10} {status:>5} {equal:>7} {sum(counts.values()):>9,} {wall_s:>6.1f} s")
    ours, theirs = results["rankscope"], results["torch"]
    names = {name for name in ours[2] | theirs[2] if ours[2].get(name) != theirs[2].get(name)}
    for name in sorted(names):
        print(f"  {name}: torch {theirs[2].get(name, 0)}, rankscope {ours[2].get(name, 0)}")
    return int(bool(names) or ours[:2] != theirs[:2])


def _run(way: str, command: list[str]) -> tuple[int, str, dict[str, int], float]:
    with TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        env = {**os.environ, "RANKSCOPE_DROP_IN": f"{way} {counts}"}
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, *command], env=env, stdout=subprocess.PIPE, text=True
        )
        wall_s = time.perf_counter() - start
        ops = json.loads(counts.read_text()) if counts.exists() else {}
    return done.returncode, _TIMES.sub("", done.stdout), ops, wall_s


def _run_script(way: str, counts: str) -> None:
    """In the process of the script."""
    import torch

    import rankscope

    profile: Any = {"torch": torch.profiler.profile, "rankscope": rankscope.profile}.get(way)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    torch.manual_seed(1)
    if profile is None:
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    with profile() as prof:
        runpy.run_path(sys.argv[0], run_name="__main__")
    ops = {event.key: event.count for event in prof.key_averages() if event.key.startswith("aten::")}
    Path(counts).write_text(json.dumps(ops))


if __name__ == "__main__":
    if "RANKSCOPE_DROP_IN" in os.environ:
        _run_script(*os.environ.pop("RANKSCOPE_DROP_IN").split(" ", 1))
    else:
        sys.exit(main())
