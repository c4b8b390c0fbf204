"""Ring files are read as they were written, also while they are being written."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from rankscope.capture.telemetry_ring import FIELDS, HEADER_BYTES, PHASES, RECORD, RingWriter, ring_path
from rankscope.errors import StoreError
from rankscope.watch.rings import WARM_UP, has_telemetry, read_rings, read_whole, tables
from simulated_telemetry import Job, telemetry, write_rings


def _ring(run: Path, rank: int, steps: int, capacity: int = 32, **about: object) -> RingWriter:
    (run / "telemetry").mkdir(exist_ok=True)
    writer = RingWriter(ring_path(run, rank), {"rank": rank, "started_unix_ns": 5, **about}, capacity)
    for step in range(steps):
        writer.write([[step, 10 + step, 100, *[7] * (len(FIELDS) - 5), 0]], 10 + step, 1, 9)
    return writer


def test_the_last_records_in_order_across_the_wrap(tmp_path: Path) -> None:
    _ring(tmp_path, 0, 50)
    (ring,) = read_rings(tmp_path, 20)
    assert ring.records[:, 1].tolist() == list(range(30, 50))
    assert (ring.last_step, ring.last_end_unix_ns, ring.header.records) == (49, 59, 50)
    assert len(read_whole(tmp_path)[0].records) == 32


def test_a_record_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    _ring(tmp_path, 0, 50)
    with ring_path(tmp_path, 0).open("r+b") as file:
        file.seek(HEADER_BYTES + 40 % 32 * RECORD.size)
        file.write(RECORD.pack(73, *[0] * (len(FIELDS) - 1)))
    (ring,) = read_rings(tmp_path, 20)
    assert 40 not in ring.records[:, 1] and len(ring.records) == 19


def test_files_that_are_not_whole_are_left_out(tmp_path: Path) -> None:
    _ring(tmp_path, 1, 3)
    ring_path(tmp_path, 2).write_bytes(b"RSRING1\n")
    ring_path(tmp_path, 3).write_bytes(ring_path(tmp_path, 1).read_bytes()[: HEADER_BYTES + 200])
    (tmp_path / "telemetry" / "capture-0001.json").write_text("{}")
    assert [(ring.rank, len(ring.records)) for ring in read_rings(tmp_path)] == [(1, 3), (3, 1)]


def test_without_telemetry(tmp_path: Path) -> None:
    assert not has_telemetry(tmp_path)
    with pytest.raises(StoreError, match="has no telemetry") as error:
        read_rings(tmp_path)
    assert error.value.why and "--watch" in error.value.hint
    _ring(tmp_path, 0, 0)
    assert has_telemetry(tmp_path)
    assert tables(read_rings(tmp_path)) == []


def test_a_table_ends_where_all_ranks_are(tmp_path: Path) -> None:
    for rank, steps in enumerate((20, 20, 19, 12)):
        _ring(tmp_path, rank, steps)
    (table,) = tables(read_rings(tmp_path))
    assert table.steps.tolist() == list(range(WARM_UP, 12))
    assert np.isfinite(table["own_ns"]).all()


def test_a_rank_that_makes_no_steps_is_not_waited_for(tmp_path: Path) -> None:
    writers = [_ring(tmp_path, rank, 20 if rank < 3 else 12) for rank in range(4)]
    late = [[step, int(1e12), 900, *[7] * (len(FIELDS) - 5), 0] for step in range(20, 30)]
    for writer in writers[:3]:
        writer.write(late, int(1e12), 1, 9)
    (table,) = tables(read_rings(tmp_path))
    assert table.steps[-1] == 29 and np.isnan(table["own_ns"][-1, 3])


def test_a_rank_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    writers = [_ring(tmp_path, rank, 20 if rank < 3 else 12) for rank in range(4)]
    writers[3].write([], 40, PHASES.index("ended"), 9)
    (table,) = tables(read_rings(tmp_path))
    assert table.steps[-1] == 19


def test_roles_are_apart_and_profiled_steps_are_left_out(tmp_path: Path) -> None:
    _ring(tmp_path, 0, 20)
    writer = _ring(tmp_path, 1, 20, role="generator")
    writer.write([[20, 40, 900, *[7] * (len(FIELDS) - 5), 1]], 40, 1, 9)
    trainer, generator = tables(read_rings(tmp_path))
    assert (trainer.ranks.tolist(), generator.ranks.tolist()) == ([0], [1])
    assert generator.steps[-1] == 19


def test_simulated_rings_come_back(tmp_path: Path) -> None:
    job = Job(4, steps=40)
    made = telemetry(job)
    write_rings(tmp_path, job, made, alive_unix_ns=time.time_ns())
    (table,) = tables(read_rings(tmp_path))
    assert table.nodes == ("node0",) * 4
    assert np.allclose(table["own_ns"], made["own_ns"][WARM_UP:], atol=1)
    assert np.isnan(table["device_ns"]).all()
