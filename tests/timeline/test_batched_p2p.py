"""The members of a kernel that batch_isend_irecv launches: from the calls before it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from conftest import DATA
from rankscope.timeline.run import Run


def test_real_batches_are_named_by_the_calls_before_them(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "batched-p2p-h200")
    rows = run.rows(
        "SELECT kind, peer, group_name, dtype, in_elements, out_elements, members FROM collectives ORDER BY id"
    )
    small, large = 262_144, 1_048_576
    assert [row[:6] for row in rows] == [
        ("sendrecv", 0, "0", "float32", large, large),
        ("sendrecv", 0, "0", "float32", large + small, large + small),
    ]
    one_batch = [["send", 0, "0", 4 * large], ["recv", 0, "0", 4 * large]]
    assert json.loads(rows[0][6]) == one_batch
    assert json.loads(rows[1][6]) == [*one_batch, ["send", 0, "0", 4 * small], ["recv", 0, "0", 4 * small]]
