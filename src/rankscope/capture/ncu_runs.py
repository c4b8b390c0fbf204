"""Several runs of one command under ncu: their reports in one folder, and the launches in them."""

from __future__ import annotations

import shutil
from pathlib import Path

from rankscope import tools
from rankscope.capture.run_folder import rank_manifests, write_rank
from rankscope.capture.under_tool.reports import NO_NCU_REPORT

REPORTS = "*.ncu-rep"


def launches_in(folder: Path, ncu: tools.Tool) -> list[tools.Launch]:
    """The launches of all reports in a folder."""
    return [launch for report in sorted(folder.glob(REPORTS)) for launch in tools.ncu_launches(ncu, report)]


def failure(folder: Path) -> str:
    """Why ncu itself failed in this run, so that running again would not help; "" when it did not."""
    notes = [note for manifest in rank_manifests(folder) for note in manifest["notes"]]
    return next((note for note in notes if note.startswith(NO_NCU_REPORT)), "")


def take_reports(folder: Path, later: Path, number: int) -> None:
    """Move the reports of a later run into the folder of the first, as rank-00000.2.ncu-rep, with their windows."""
    first = {manifest["rank"]: manifest for manifest in rank_manifests(folder)}
    for manifest in rank_manifests(later):
        target_manifest = first.setdefault(manifest["rank"], {**manifest, "windows": []})
        windows = target_manifest["windows"]
        for window in manifest["windows"]:
            source = later / window["file"]
            target = folder / f"{source.stem}.{number}{source.suffix}"
            shutil.move(source, target)
            windows.append({**window, "index": len(windows), "file": target.name})
        write_rank(folder, target_manifest)
    shutil.rmtree(later, ignore_errors=True)
