"""How cost grows: which counts are measured, the simulated job on many ranks, and what is computed for more."""

from __future__ import annotations

from pathlib import Path

import pytest

import at_scale
import scaling
import traces
from figures import Figures, Part, Row
from measure import Cost
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [2, 1]), (12, [12, 1, 2, 4, 8]), (16, [16, 1, 2, 4, 8])]
)
def test_counts_from_one_to_all_the_outermost_first(most: int, counts: list[int]) -> None:
    assert scaling.counts_up_to(most) == counts


def ranks_part(cost: dict[int, float]) -> Part:
    rows = [Row(f"{n:,} ranks", "stats", Cost(seconds, seconds, 10**9), n) for n, seconds in cost.items()]
    facts = {
        f"{n:,} ranks": {"ranks": float(n), "store files": 2.0 * n + 5, "derived bytes": 6e4 * n}
        for n in cost
    }
    return Part("ranks", "Ranks", "", "2026-11-18", rows=rows, facts=facts, grid=True)


def test_many_ranks_are_computed_by_the_line_through_the_two_largest() -> None:
    slope, value = at_scale.at_ranks(256, 1024, (2.0, 3.536), 16_384)
    assert slope == pytest.approx(0.002)
    assert value == pytest.approx(3.536 + 15_360 * 0.002)
    assert at_scale.at_ranks(256, 1024, (3.0, 2.0))[1] == 2.0  # noise is no gain
    cores = Part(
        "cores",
        "Cores",
        "",
        rows=[Row("stacks 1GB", "1 core", Cost(6.0, 5.0, 500_000_000), 1_000_000_000)],
        facts={"stacks 1GB": {"trace bytes": 1e9, "store bytes": 7e7}},
    )
    machine = {"cores": "16", "CPU": "a CPU", "memory": "64 GB"}
    text = at_scale.markdown(
        Figures(machine, {"ranks": ranks_part({64: 1.0, 256: 2.0, 1024: 3.536}), "cores": cores})
    )
    assert "| stats | 3.54 s of 1,024 ranks | 0.002 s | 34.3 s |" in text
    assert "| store files | 2,053 of 1,024 ranks | 2 | 32,773 |" in text
    assert "| reading, CPU | 5.0 s for 1.00 GB | 5.0 s | 23 hours |" in text
    assert "21 min on 1, 5 min on 4, 1 min on 16" in text
    assert "7.0% of the traces | 70 MB | 1.1 TB beside 16 TB of traces" in text
    assert at_scale.markdown(Figures(machine, {})) == ""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_simulated_job_is_a_run_of_all_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that repeat others: the layout is that of the whole job, and every message has its other end."""
    monkeypatch.setattr(traces, "WORK", tmp_path)
    monkeypatch.setattr(traces, "TENSOR", 2)
    monkeypatch.setattr(traces, "STAGES", 2)
    monkeypatch.setattr(traces, "SIMULATED_REPLICAS", 2)
    folder = traces.cluster(12, 500)
    assert len(scaling.rank_files(folder)[0]) == 12
    run = Run(ingest([folder], Options(jobs=1)))
    assert run.collectives.unmatched == ()
    findings = REPORTS["layout"].analyse(run, Scope(), None).findings
    assert findings[0].title == "12 ranks: pp 2 x dp 3 x tp 2"
    facts = scaling.store_facts(run.store)
    assert facts["store bytes"] > facts["derived bytes"] + facts["index bytes"]
    assert facts["index bytes"] == (run.store / "store.json").stat().st_size
    assert facts["store files"] > 12
