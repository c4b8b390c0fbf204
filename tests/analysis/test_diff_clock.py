"""Two recorded runs of one program, the second with the clock locked: the clock is named first, and only where it is
the reason."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from conftest import DATA, open_trace
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.clock import clock_change
from rankscope.analysis.diff.two_runs import diff
from rankscope.timeline.run import Run

OpenReal = Callable[[Path], Run]
FREE, LOCKED = DATA / "clocks-h200-free", DATA / "clocks-h200-900mhz"


def test_the_clock_is_named_first(open_real: OpenReal) -> None:
    result = diff(open_real(FREE), open_real(LOCKED), Scope())
    first = result.findings[0]
    assert (
        first.title
        == "A step takes 12.1 ms longer (+60.3 %): the SM clock is locked at 900 MHz, against 1,452 MHz"
    )
    assert first.severity == "critical" and "now: 32.1 ms, median of the steps" in first.lines
    assert (
        "times lower the SM clock: 1.61, in the new run" in first.lines
        and "1.56, in the new" in first.evidence
        and "-rgc" in first.hint
    )
    assert [fact.value for fact in first.facts if fact.quantity == "sm_clock_mhz"] == [900, 1452]
    # What follows from it is no finding about the program.
    ops = [finding for finding in result.findings if finding.title.startswith("ops: aten::mm")]
    assert [(finding.severity, finding.hint) for finding in ops] == [("info", "The lower clock explains it.")]
    assert all(finding.severity == "info" for finding in result.findings[1:])


def test_the_other_way_round(open_real: OpenReal) -> None:
    first = diff(open_real(LOCKED), open_real(FREE), Scope()).findings[0]
    assert first.title.endswith("ms less (-37.6 %): the SM clock is 1,452 MHz, against 900 MHz (locked)")
    assert first.severity == "info" and not first.hint


def test_a_clock_that_explains_nothing_is_a_finding_of_its_own(open_real: OpenReal, tmp_path: Path) -> None:
    """The same run, with a log that claims 900 MHz."""
    shutil.copytree(FREE, tmp_path / "claimed")
    log = tmp_path / "claimed" / "gpu.csv"
    log.write_text(re.sub(r", \d+ MHz, 3201 MHz", ", 900 MHz, 3201 MHz", log.read_text()))
    titles = [
        finding.title for finding in diff(open_real(FREE), open_trace(tmp_path / "claimed"), Scope()).findings
    ]
    assert titles[0].startswith("No clear change")
    assert titles[1].startswith("The SM clock is 900 MHz, against 1,452 MHz")


def test_without_logs_nothing_is_claimed(open_real: OpenReal, tmp_path: Path) -> None:
    trace = "rank-00000.pt.trace.json.gz"
    shutil.copy(LOCKED / trace, tmp_path / trace)
    without = open_trace(tmp_path)
    assert clock_change(open_real(FREE), without, Scope()) is None
    title = diff(open_real(FREE), without, Scope()).findings[0].title
    assert (
        title.startswith("A step takes 12.1 ms longer (+60.3 %): compute adds 10.9 ms")
        and "clock" not in title
    )


def test_the_same_clock_is_no_change(open_real: OpenReal) -> None:
    assert clock_change(open_real(FREE), open_real(FREE), Scope()) is None
