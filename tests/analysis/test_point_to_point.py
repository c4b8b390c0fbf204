"""Waits of sends and receives are those of the simulator: 1F1B and interleaved pipelines, separate and batched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.event_replay import EventReplay, Times, durations_of, events_of, recorded
from analysis.plain_walk import pieces, plain_walk
from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.time_split import own_times
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.savings import savings_of
from rankscope.analysis.critical_path.scenarios import bandwidth, hide_comm
from rankscope.analysis.faults.stragglers import causes_of_ranks
from rankscope.store.arrays import NONE
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run, open_run
from rankscope_bench.synthetic.cluster import Fault, Job, RankRun, simulate
from rankscope_bench.synthetic.cluster_trace import write_traces

pytestmark = pytest.mark.slow

JOBS = {
    "1f1b batched": Job(stages=4, data=1, schedule="1f1b", p2p="batched", micro_batches=4, steps=2, layers=2),
    "1f1b separate": Job(
        stages=4, data=1, schedule="1f1b", micro_batches=4, steps=2, layers=2, offset_ns=5_000_000
    ),
    "interleaved": Job(
        stages=2, data=1, schedule="interleaved", chunks=2, p2p="batched", micro_batches=4, steps=2, layers=2
    ),
}


@pytest.fixture(scope="module", params=JOBS)
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Any, Run]:
    job = JOBS[request.param]
    runs = simulate(job)
    folder = tmp_path_factory.mktemp("run")
    write_traces(job, runs, folder)
    return job, runs, Run(ingest([folder]))


def exchanged(run: RankRun) -> np.ndarray[Any, Any]:
    """[work, (wait, duration)] of the sends and receives of a rank, in order of their start."""
    works = sorted(
        (work for work in run.works if work.axis == "pp" and work.key), key=lambda work: work.start
    )
    return np.array(
        [(work.last_arrival - work.start, work.end - work.start) for work in works], dtype=np.int64
    )


def test_every_message_is_paired(planted: tuple[Job, Any, Run]) -> None:
    _, runs, run = planted
    rows = run.collectives
    assert rows.unmatched == ()
    messages = sum(
        len(work.transfers) for each in runs for work in each.works if work.axis == "pp" and work.key
    )
    assert rows.pairs.shape == (2, messages // 2)
    sends, recvs = rows.pairs
    assert (rows.rank[sends] != rows.rank[recvs]).all()


def test_waits_and_transfers_are_planted(planted: tuple[Job, Any, Run]) -> None:
    job, runs, run = planted
    found = waits(run)
    rows = found.rows
    for rank, each in enumerate(runs):
        mine = np.flatnonzero((rows.rank == rank) & rows.point_to_point)
        truth = exchanged(each)
        assert rows.duration[mine].tolist() == truth[:, 1].tolist()
        # Ranks leave up to leave_ns apart, and the clocks are measured by such ends.
        assert np.abs(found.wait[mine] - truth[:, 0]).max() <= 3 * job.leave_ns
        assert np.abs(found.entry_transfer[mine] - (truth[:, 1] - truth[:, 0])).max() <= 3 * job.leave_ns


def test_who_is_waited_for_started_last(planted: tuple[Job, Any, Run]) -> None:
    job, _, run = planted
    found = waits(run)
    rows = found.rows
    waited = np.flatnonzero(rows.point_to_point & (found.wait > 3 * job.leave_ns))
    late = found.waited_for[waited]
    assert len(waited) and (late != NONE).all()
    assert (rows.rank[late] != rows.rank[waited]).all()
    assert (np.abs(rows.start[late] - rows.start[waited] - found.wait[waited]) <= 3 * job.leave_ns).all()


def test_the_replay_is_that_event_by_event(planted: tuple[Job, Any, Run]) -> None:
    _, _, run = planted
    scope = Scope().in_run(run)
    events, savings = events_of(run, scope), savings_of(run, scope)
    assert len(events.visits.node) and savings is not None and savings.off_ns == 0
    replay = EventReplay(events)
    times = replay.play(recorded(events))
    assert times is not None and [*times] == [*Times.as_recorded(events)]
    assert pieces(savings.graph) == plain_walk(events)
    for scenario in (hide_comm(), bandwidth(2)):
        work = scenario.change(run, savings.graph, savings.graph.work)
        played = replay.length(durations_of(events, savings.graph, work))
        assert savings.length_with([scenario]) == played
    # A message that takes no time still waits for the other end.
    assert 0 < savings.saved_ns([hide_comm()]) < 0.5 * savings.step_ns


def test_breakdown_and_collectives_have_the_planted_waits_and_transfers(
    planted: tuple[Job, Any, Run],
) -> None:
    job, runs, run = planted
    if job.p2p != "batched":  # kernels of the two directions overlap
        return
    rows = REPORTS["breakdown"].analyse(run, Scope().in_run(run), None).rows
    for rank, each in enumerate(runs):
        truth = exchanged(each)
        parts = [row for row in rows if row["rank"] == rank and row["step"] is not None]
        wait = sum(row["exposed_wait_ns"] for row in parts)
        transfer = sum(row["exposed_comm_ns"] for row in parts) - wait
        slack = 3 * job.leave_ns * len(truth)
        assert wait == pytest.approx(truth[:, 0].sum(), abs=slack)
        assert transfer == pytest.approx((truth[:, 1] - truth[:, 0]).sum(), abs=slack)
    listed = [
        row for row in REPORTS["collectives"].analyse(run, Scope(), None).rows if row["kind"] == "sendrecv"
    ]
    assert listed and all(row["transfer_ns"] == pytest.approx(job.send_ns, rel=0.2) for row in listed)
    assert all(row["wait_ns"] is not None and row["busbw_gb_s"] for row in listed)


def test_nobody_is_charged_in_a_balanced_pipeline(planted: tuple[Job, Any, Run]) -> None:
    _, _, run = planted
    result = REPORTS["stragglers"].analyse(run, Scope(), None)
    assert not causes_of_ranks(run, Scope())
    rows = {row["rank"]: row for row in result.rows}
    found = waits(run)
    for rank in run.ranks:
        mine = (found.rows.rank == rank) & (found.wait > 0)
        assert rows[rank]["own_wait_ns"] == found.wait[mine].sum()


def test_a_slow_rank_is_charged_with_its_own_excess(tmp_path: Path) -> None:
    """Two pipelines of three stages: however long the chains of waits, each counts at most the planted excess."""
    extra = 2_000_000
    fault = Fault("compute", ranks=(2,), ns=extra)
    job = Job(
        stages=3, data=2, schedule="1f1b", p2p="batched", micro_batches=4, steps=4, layers=2, faults=(fault,)
    )
    write_traces(job, simulate(job), tmp_path)
    run = Run(ingest([tmp_path]))
    result = REPORTS["stragglers"].analyse(run, Scope(), None)
    row = result.rows[0]
    assert (row["rank"], row["cause"]) == (2, "compute")
    assert 0 < row["caused_wait_ns"] <= 1.1 * extra * (len(run.ranks) - 1) * job.steps


def test_messages_align_the_clocks_of_stages_that_share_no_collective(tmp_path: Path) -> None:
    offset = 40_000_000
    job = Job(stages=3, data=1, schedule="1f1b", micro_batches=4, steps=2, layers=1, offset_ns=offset)
    write_traces(job, simulate(job), tmp_path)
    run = Run(ingest([tmp_path]))
    assert [clock.method for clock in run.clocks.ranks] == ["reference", "collectives", "collectives"]
    planted_offsets = [clock.offset_ns - job.clocks[0].offset_ns for clock in job.clocks]
    assert max(map(abs, planted_offsets)) == offset
    for clock, ahead in zip(run.clocks.ranks, planted_offsets, strict=True):
        assert clock.offset_ns == pytest.approx(ahead, abs=3 * job.leave_ns)
    assert waits(run).wait.min() >= 0


def test_kernels_that_a_pattern_calls_communication_are_not_own_time(tmp_path: Path) -> None:
    job = Job(data=2, steps=4, layers=2, faults=(Fault("compute", ranks=(1,), ns=3_000_000),))
    write_traces(job, simulate(job), tmp_path)
    excess = {}
    for patterns in ((), ("reduce_kernel",)):
        run = open_run([tmp_path], comm_patterns=patterns)
        excess[patterns] = own_times(run, Scope()).excess[1].mean()
    assert excess == {
        (): pytest.approx(3_000_000, rel=0.1),
        ("reduce_kernel",): pytest.approx(0, abs=200_000),
    }
