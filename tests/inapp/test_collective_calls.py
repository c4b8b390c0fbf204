"""Group, number and peer of a process's calls, from torch's flight recorder and from what is noted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.inapp import collective_calls
from rankscope.inapp.collective_calls import MOST_CALLS, CollectiveCalls

torch: Any = pytest.importorskip("torch")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Any]:
    """A process group of this process."""
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


def test_collectives_of_the_window(alone: Any) -> None:
    calls = CollectiveCalls()
    alone.all_reduce(torch.ones(3))
    calls.begin()
    alone.all_reduce(torch.ones(4))
    alone.barrier()
    field = calls.end()
    if field is None:
        pytest.skip("this torch records no collectives of gloo")
    (_, first, one), (_, second, two) = field["calls"]
    assert field["what"][first] == ["gloo:all_reduce", "0", None, "Float", 4]
    assert field["what"][second][:2] == ["gloo:barrier", "0"]
    assert two == one + 1
    assert all(0 <= since < 60e6 for since, _, _ in field["calls"])


class Group:
    """What is asked of a process group."""

    group_name = "7"


def test_messages_are_noted_with_their_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(collective_calls, "flight_entries", lambda name: [])
    monkeypatch.setattr(torch.distributed, "get_backend", lambda group: "gloo")
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: [4, 6])
    calls = CollectiveCalls()
    send = calls._noting("send", True)(lambda *args: sent.append(args))
    recv = calls._noting("recv", False)(lambda *args: sent.append(args))
    group, tensor = Group(), torch.ones(2, 5)
    send(group, [tensor], 1, 0)
    recv(group, [tensor], 0)
    assert sent == [(group, [tensor], 1, 0), (group, [tensor], 0)]
    field = calls.end()
    assert field is not None
    assert field["what"] == [["send", "7", 6, "torch.float32", 10], ["recv", "7", None, "torch.float32", 10]]
    assert [call[1:] for call in field["calls"]] == [[0, None], [1, None]]


def test_a_call_that_cannot_be_noted_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_calls, "flight_entries", lambda name: [])
    calls = CollectiveCalls()
    send = calls._noting("send", True)(lambda *args: "sent")
    assert send(object(), [torch.ones(1)], 9, 0) == "sent"
    assert calls.end() is None


def test_of_many_calls_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(number: int) -> dict[str, Any]:
        return {
            "time_created_ns": now + 1000 * number, "is_p2p": False, "input_dtypes": ["Float"], "input_sizes": [[2, 3]],
            "profiling_name": "gloo:all_reduce", "process_group": ["0", "default_pg"], "collective_seq_id": number,
        }  # fmt: skip

    calls = CollectiveCalls()
    calls.begin()
    now = time.time_ns()
    monkeypatch.setattr(
        collective_calls, "flight_entries", lambda name: [entry(n) for n in range(2 * MOST_CALLS)]
    )
    field = calls.end()
    assert field is not None
    assert [seq for _, _, seq in field["calls"]] == list(range(MOST_CALLS, 2 * MOST_CALLS))
    assert field["what"] == [["gloo:all_reduce", "0", None, "Float", 6]]


def test_torch_is_left_as_it_was(alone: Any) -> None:
    group = torch._C._distributed_c10d.ProcessGroup
    before = {name: vars(group)[name] for name in ("send", "recv", "recv_anysource")}
    calls = CollectiveCalls()
    calls.begin()
    assert vars(group)["send"] is not before["send"]
    calls.off()
    assert {name: vars(group)[name] for name in before} == before
