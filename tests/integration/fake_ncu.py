"""A fake of ncu, which needs a GPU: runs the command, then "profiles" the launches of a scripted list.

FAKE_LAUNCHES is a JSON list of [step, name, grid, block] in order of launch; names as ncu demangles them. The fake
filters them as ncu documents its options: by name and name base, skip and count (for all, or for each grid and block),
and with --profile-from-start=off only the steps that the job's own environment asks for. A report is a JSON file, which
`--import` prints as csv. With FAKE_OLD it lacks --filter-mode, as older versions do.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

MODES = "per-launch-config"


def main(words: list[str]) -> int:
    if words == ["--version"]:
        print("Version 2025.3.0.0 (build 1)")
        return 0
    if words == ["--help"]:
        print("usage: ncu", "" if "FAKE_OLD" in os.environ else f"--filter-mode {MODES}")
        return 0
    if words[0] == "--import":
        return show(Path(words[1]))
    place = next(index for index, word in enumerate(words) if not word.startswith("-"))
    options = dict(word.partition("=")[::2] for word in words[:place])
    noted = Path(os.environ["FAKE_ARGUMENTS"])
    with noted.open("a") as file:
        file.write(" ".join(words) + "\n")
    Path(f"{noted}.env").write_text("".join(f"{name}={value}\n" for name, value in os.environ.items()))
    done = subprocess.run(words[place:], check=False)
    return done.returncode if profile(options) else 1


def profile(options: dict[str, str]) -> bool:
    if "--filter-mode" in options and "FAKE_OLD" in os.environ:
        return False
    launches = json.loads(os.environ.get("FAKE_LAUNCHES", '[[0, "gemm", [1, 1, 1], [32, 1, 1]]]'))
    chosen = selected(options, launches)
    log = Path(options["--log-file"])
    if "FAKE_ERROR" in os.environ:
        log.write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
        return True
    if not chosen:
        names = dict.fromkeys(function_name(launch[1]) for launch in launches)
        listed = "".join(f"{number}. {name}\n" for number, name in enumerate(names, 1))
        log.write_text(f"==WARNING== No kernels were profiled.\nAvailable Kernels:\n{listed}")
        return True
    log.write_text("".join(f'==PROF== Profiling "{one[1]}" - 0: 0%....100% - 9 passes\n' for one in chosen))
    Path(options["--export"]).write_text(json.dumps(chosen))
    return True


def selected(options: dict[str, str], launches: list[list[object]]) -> list[list[object]]:
    pattern = re.compile(options["--kernel-name"].removeprefix("regex:"))
    skip, count = int(options.get("--launch-skip", 0)), int(options.get("--launch-count", 10**9))
    steps = recorded_steps() if options.get("--profile-from-start") == "off" else None
    by_size = options.get("--filter-mode") == "per-launch-config"
    met: Counter[str] = Counter()
    chosen = []
    for launch in launches:
        step, name, grid, block = launch
        if steps is not None and step not in steps:
            continue
        if not pattern.search(
            function_name(name) if options["--kernel-name-base"] == "function" else str(name)
        ):
            continue
        size = f"{grid} {block}" if by_size else ""
        met[size] += 1
        if skip < met[size] <= skip + count:
            chosen.append(launch)
    return chosen


def function_name(name: object) -> str:
    """As ncu's base name: without what comes before and behind the function."""
    return re.sub(
        r"^.*?(?:::)?(\w+)(?:<.*|\(.*)?$", r"\1", str(name).removeprefix("void ").replace("at::native::", "")
    )


def recorded_steps() -> list[int]:
    """The steps of the plan that the job's environment holds; the job is a script that writes it to ./plan."""
    noted = Path("plan")
    plan = json.loads((noted.exists() and noted.read_text()) or "{}")
    if not plan or "FAKE_NO_STEPS" in os.environ:
        return []
    when = plan["when"]
    first = when["skip_first"] + when["wait"] + when["warmup"]
    return list(range(first, first + when["active"]))


def show(report: Path) -> int:
    rows = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL)
    rows.writerow(["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "gpu__time_duration.sum"])
    rows.writerow(["", "", "", "", "", "ns"])
    for number, (_, name, grid, block) in enumerate(json.loads(report.read_text())):
        sizes = [f"({', '.join(map(str, size))})" for size in (block, grid)]
        rows.writerow([str(number), "7", name, *sizes, "1,000"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
