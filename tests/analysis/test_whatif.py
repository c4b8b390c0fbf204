"""What-if: the prediction is the step time of the other run, to the nanosecond where nothing is random."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from analysis.event_replay import graph_of_events, nodes_of
from analysis.random_programs import Program, events_of_program, play, random_program
from conftest import DATA, examples, kernel_event, open_trace, write_kineto
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.critical_path import scenarios
from rankscope.analysis.critical_path.whatif import whatif
from rankscope.analysis.graph.events import HOST_CLASSES, NONE
from rankscope.analysis.graph.graph import Graph, Work, graph_of
from rankscope.analysis.graph.replay import Replay
from rankscope.cli import main
from rankscope.errors import UsageError
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, Slower, Straggler, write


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_replay_is_what_playing_the_program_gives(seed: int) -> None:
    program = random_program(seed)
    events, device_at = events_of_program(program)
    # Which stream a call would have waited for, had it had to, no file tells.
    assume(not ((events.host.kind == HOST_CLASSES.index("sync")) & (events.host.target == NONE)).any())
    graph = graph_of_events(events)
    assert ends(graph, graph.work).tolist() == graph.end.tolist()
    faster = Program(
        [[replace(item, took=item.took // 3) for item in items] for items in program.ranks],
        [time // 2 for time in program.transfer],
    )
    _, expected = play(faster)
    work = replace(graph.work, own_ns=graph.work.own_ns // 3, transfer=graph.work.transfer // 2)
    found = ends(graph, work)[nodes_of(events, graph)].tolist()
    assert found[: len(device_at)] == [expected[rank][at][1] for rank, at in device_at]


def ends(graph: Graph, work: Work) -> Ints:
    """By point; all are in the window."""
    replay = Replay(graph)
    assert not replay.has_cycle
    ends: Ints = np.empty(len(graph.rank), dtype=np.int64)
    ends[replay._points] = replay.ends(replay.arrays(work))
    return ends


Make = Callable[..., Run]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Synthetic runs without anything random; each made once."""
    made: dict[str, Run] = {}

    def run(**plan: Any) -> Run:
        key = repr(sorted(plan.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("whatif")
            write(Plan(ranks=3, events_per_rank=4_000, steps=2, jitter=False, **plan), folder)
            made[key] = Run(ingest([folder]))
        return made[key]

    return run


def step_ns(run: Run) -> int:
    return round(mean_step_ns(run, Scope().in_run(run)))


def predicted(run: Run, *asked: scenarios.Scenario) -> int:
    rows = whatif(run, Scope(), asked).rows
    assert rows[0]["base_ns"] == step_ns(run)
    found: int = rows[-1]["predicted_ns"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["dataloader", "compute", "host", "copy"])
def test_without_the_straggler(make: Make, cause: str) -> None:
    slow = make(straggler=Straggler(2, cause, 3_000_000))
    assert step_ns(slow) > step_ns(make()) + 2_000_000
    assert predicted(slow, scenarios.rank_at_median(2)) == step_ns(make())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "factor"), [("gelu", 2.0), ("nvjet", 1.5), ("Adam", 0.5)])
def test_a_faster_kernel(make: Make, name: str, factor: float) -> None:
    assert predicted(make(), scenarios.kernel(name, factor)) == step_ns(
        make(slower=(Slower(name, 1 / factor),))
    )


@pytest.mark.thorough
def test_communication_hidden_and_a_faster_bus(make: Make) -> None:
    free = step_ns(make(bus_gb_s=0.0, latency_ns=0))
    assert predicted(make(), scenarios.hide_comm()) == free
    slow = make(bus_gb_s=50.0)
    assert step_ns(slow) > 2 * step_ns(make())
    assert predicted(slow, scenarios.hide_comm()) == free
    # the latency comes from a fit over rounded times
    assert abs(predicted(slow, scenarios.bandwidth(6.0)) - step_ns(make())) < 50


@pytest.mark.slow
def test_two_changes_together(make: Make) -> None:
    both = make(straggler=Straggler(2, "compute", 3_000_000), bus_gb_s=50.0)
    result = whatif(both, Scope(), [scenarios.rank_at_median(2), scenarios.bandwidth(6.0)])
    assert [row["what"] for row in result.rows] == [
        "rank 2 at the median",
        "bandwidth x6",
        "all of these together",
    ]
    assert abs(result.rows[-1]["predicted_ns"] - step_ns(make())) < 50
    assert sum(note.startswith("assumption:") for note in result.notes) == 3
    assert result.findings[0].cost_ns == result.rows[-1]["saved_ns"]


@pytest.mark.slow
def test_the_usual_questions_and_no_gaps(make: Make) -> None:
    slow = make(straggler=Straggler(2, "dataloader", 3_000_000))
    rows = {row["what"]: row for row in whatif(slow, Scope()).rows}
    assert [*rows] == ["the faults mended", "host gaps gone", "communication hidden", "bandwidth x2"]
    assert rows["the faults mended"]["saved_ns"] == pytest.approx(3_000_000, rel=0.01)
    assert rows["host gaps gone"]["saved_ns"] > 3_000_000
    assert rows["communication hidden"]["saved_ns"] > 0


@pytest.mark.thorough
def test_with_jitter_clocks_and_a_missing_rank(tmp_path: Path) -> None:
    """Noise is kept as it is; offsets of clocks do not matter to a replay."""
    plan: dict[str, Any] = {"ranks": 4, "events_per_rank": 5_000, "steps": 4, "seed": 3}
    clocks: dict[str, Any] = {"max_offset_ns": 5_000_000, "max_drift_ppm": 10.0}
    write(
        Plan(**plan, straggler=Straggler(2, "compute", 3_000_000), **clocks, missing=(1,)), tmp_path / "slow"
    )
    write(Plan(**plan), tmp_path / "fast")
    slow, fast = (Run(ingest([tmp_path / name])) for name in ("slow", "fast"))
    found = whatif(slow, Scope(), [scenarios.rank_at_median(2)]).rows[0]
    true = step_ns(fast)
    assert found["predicted_ns"] == pytest.approx(true, rel=0.04)


@pytest.mark.thorough
def test_real_ranks(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "seqpar-gloo4-slow2")
    (row,) = whatif(run, Scope(), [scenarios.rank_at_median(2)]).rows
    assert row["saved_ns"] == pytest.approx(10.6e6, rel=0.05)
    rows = whatif(run, Scope()).rows
    assert max(rows, key=lambda row: row["saved_ns"])["what"] == "the faults mended"
    for name in ("seqpar-gloo4", "ddp-gloo4", "gpt-h200"):
        run = open_real(DATA / name)
        result = whatif(run, Scope())
        graph = graph_of(run, Scope().in_run(run))
        assert result.rows[0]["base_ns"] == step_ns(run)
        assert ends(graph, graph.work).tolist() == graph.end.tolist()
        assert not any("a replay without changes" in note for note in result.notes)


@pytest.mark.slow
def test_bad_input(tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    lone = open_trace(write_kineto(tmp_path / "k.json", [kernel_event("k", 10, 5), kernel_event("k", 20, 5)]))
    assert whatif(lone, Scope()).rows[0]["what"] == "host gaps gone"
    with pytest.raises(UsageError, match="no kernel has 'softmaxx'"):
        predicted(make(), scenarios.kernel("softmaxx", 2.0))
    with pytest.raises(UsageError, match="this run has no rank 9"):
        predicted(make(), scenarios.rank_at_median(9))
    with pytest.raises(UsageError, match="one rank alone has no median"):
        predicted(lone, scenarios.rank_at_median(0))
    for words, message in (
        (["--rank", "2=fast"], "--rank 2=fast is not R=median"),
        (["--kernel", "gelu"], "--kernel gelu is not NAME=FACTOR"),
        (["--kernel", "gelu=0x"], "--kernel: '0x' is not a factor"),
        (["--bandwidth", "lots"], "--bandwidth: 'lots' is not a factor"),
    ):
        assert main(["whatif", str(tmp_path), *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Plan(ranks=3, events_per_rank=4_000, steps=2), tmp_path)
    words = [
        "whatif",
        str(tmp_path),
        "-q",
        "--hide-comm",
        "--no-gaps",
        "--kernel",
        "gelu=2x",
        "--format",
        "json",
    ]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    names = ["what", "base_ns", "predicted_ns", "saved_ns", "change_pct"]
    assert [column["name"] for column in document["columns"]] == names
    assert [row["what"] for row in document["rows"]] == [
        "communication hidden", "kernel gelu x2", "host gaps gone", "all of these together",
    ]  # fmt: skip
