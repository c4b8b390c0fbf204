"""Waits of sends and receives are those of the simulator: 1F1B and interleaved pipelines, separate and batched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankscope.analysis.core.collective_waits import waits
from rankscope.bench.synthetic.cluster import Job, RankRun, simulate
from rankscope.bench.synthetic.cluster_trace import write_traces
from rankscope.store.arrays import NONE
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.slow

JOBS = {
    "1f1b batched": Job(stages=4, data=1, schedule="1f1b", p2p="batched", micro_batches=4, steps=2, layers=2),
    "1f1b separate": Job(stages=4, data=1, schedule="1f1b", micro_batches=4, steps=2, layers=2),
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
