"""Several runs of one command under ncu, until every kernel of a list is measured; their reports in one folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rankscope import tools
from rankscope.capture.kernel_list import HotKernel, KernelList
from rankscope.capture.ncu_selection import Selection, select_again
from rankscope.capture.run_folder import rank_manifests, write_rank
from rankscope.capture.under_tool.reports import NO_NCU_REPORT

REPORTS = "*.ncu-rep"


class Measured(NamedTuple):
    """What ncu measured in all runs of the command."""

    code: int
    """The exit code of the last run."""
    runs: int
    launches: list[tools.Launch]
    missed: list[HotKernel]
    """The kernels that ncu did not meet."""


class NcuRuns(NamedTuple):
    """Runs a command again while ncu has not met every kernel."""

    listed: KernelList
    folder: Path
    ncu: tools.Tool
    most: int
    by_size: bool
    """This ncu can count by size."""
    run: Callable[[Selection, Path], int]
    """Runs the command with this selection into this folder; its exit code."""
    announce: Callable[[Selection], None]
    """Called before each further run."""

    def until_measured(self, selection: Selection, code: int) -> Measured:
        """After the first run, which had this selection and this exit code."""
        met = last = launches_in(self.folder, self.ncu)
        runs = 1
        # A job or an ncu that fails would do so again.
        can_try = code == 0 and not failure(self.folder)
        while can_try and runs < self.most and (missed := self.listed.missed(met)):
            selection = select_again(self.listed, selection, missed, last, by_size=self.by_size)
            runs += 1
            self.announce(selection)
            later = self.folder / f"run-{runs}"
            code = self.run(selection, later)
            last = launches_in(later, self.ncu)
            met = [*met, *last]
            can_try = code == 0 and not failure(later)
            take_reports(self.folder, later, runs)
        return Measured(code, runs, met, self.listed.missed(met))


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
