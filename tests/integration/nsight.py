"""The real nsys (install-nsight.sh), and the content of its reports."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from integration.jobs import environment

NSIGHT = Path(sys.prefix) / "nsight"
NSYS = NSIGHT / "bin" / "nsys"
JOB = str(Path(__file__).with_name("nvtx_job.py"))

needs_nsys = pytest.mark.skipif(
    not NSYS.exists(),
    reason="the real nsys is not installed (tests/integration/install-nsight.sh .venv/nsight)",
)


def with_nsys(env: dict[str, str] | None = None, **more: str) -> dict[str, str]:
    """An environment in which nsys is on the PATH."""
    env = env or environment()
    return {**env, "PATH": f"{NSYS.parent}:{env['PATH']}", **more}


def nvtx_ranges(report: Path) -> list[str]:
    """The names of a report's NVTX ranges, read from nsys's export."""
    database = report.with_suffix(".test.sqlite")
    words = [
        str(NSYS),
        "export",
        "--type=sqlite",
        f"--output={database}",
        "--force-overwrite=true",
        str(report),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{report.stat().st_size} bytes: {done.stdout}{done.stderr}"
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            "SELECT coalesce(e.text, s.value) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId "
            "WHERE e.eventType IN (59, 60)"
        ).fetchall()
    database.unlink()
    return [row[0] for row in rows]


def reports(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.nsys-rep"))


def agents_of(temp: str) -> list[str]:
    """Processes of nsys that use this temporary folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if "nsys" in (path / "comm").read_text() and temp in (path / "environ").read_text(
                errors="replace"
            ):
                found.append(path.name)
        except OSError:
            continue
    return found


def link_importer(folder: Path) -> None:
    """Link the importer beside a stand-in for nsys, where the real nsys has it."""
    for host in NSIGHT.glob("host-linux-*"):
        (folder / host.name).symlink_to(host.resolve())


def target_only_nsys(folder: Path) -> Path:
    """The real nsys without its importer, as on nodes where only the target part of Nsight Systems is installed.

    nsys looks for the importer beside its own file, so that file is copied and the rest linked."""
    real = next(NSIGHT.glob("usr/lib/*/nsight-systems/target-linux-*"))
    target = folder / real.name
    target.mkdir(parents=True)
    for path in real.iterdir():
        if path.name == "nsys":
            shutil.copy(path, target / path.name)
        else:
            (target / path.name).symlink_to(path.resolve())
    script = folder / "nsys"
    script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{target}" exec "{target}/nsys" "$@"\n')
    script.chmod(0o755)
    return script


def have(program: str) -> bool:
    return shutil.which(program) is not None
