"""The collectives' arithmetic and checks, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rankscope.bench.collectives import KINDS, Config, Kind, is_right, sizes, sweep
from rankscope.cli import main
from rankscope.units import parse_power_bytes

torch = pytest.importorskip("torch", reason="the benchmark times torch's collectives")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A world of one rank, in this process."""
    from rankscope.bench.ranks.world import join, leave

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield join("gloo", "cpu")
    leave()


def test_factors_are_those_of_nccl_tests() -> None:
    found = {name: [kind.factor(n) for n in (1, 2, 4)] for name, kind in KINDS.items()}
    ring = [0.0, 0.5, 0.75]
    assert found == {
        "all_reduce": [0.0, 1.0, 1.5],
        "all_gather": ring,
        "reduce_scatter": ring,
        "all_to_all": ring,
        "broadcast": [1.0] * 3,
        "sendrecv": [1.0] * 3,
    }


def test_sizes() -> None:
    assert sizes(8, 128, 4) == (8, 32, 128)
    assert sizes(1000, 1999, 2) == (1000,)
    assert [parse_power_bytes(text) for text in ("8", "1K", "64M", "1MB")] == [8, 1024, 2**26, 10**6]


def test_one_rank_has_rows_for_all_but_sendrecv(alone: Any) -> None:
    config = Config(kinds=tuple(KINDS.values()), sizes=(6, 4096), dtype="bfloat16", iterations=2, warmup=0)
    rows = list(sweep(config, alone))
    assert [row["bytes"] for row in rows] == [6, 4096] * 5 + [None]
    assert rows[-1]["note"] == "needs 2 ranks" and rows[-1]["time_us"] is None
    assert is_right(rows)
    for row in rows[:-1]:
        assert row["algbw_gb_s"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3)
        assert row["busbw_gb_s"] == pytest.approx(row["algbw_gb_s"] * KINDS[row["kind"]].factor(1))


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_a_wrong_element_is_counted(alone: Any, name: str) -> None:
    def spoilt(world: Any, given: Any, got: Any) -> None:
        KINDS[name].call(world, given, got)
        got[3] += 1

    config = Config(kinds=(replace(KINDS[name], call=spoilt),), sizes=(64,), iterations=1, warmup=0)
    rows = list(sweep(config, alone))
    assert rows[0]["wrong"] == 1
    assert not is_right(rows)


def test_what_a_backend_lacks_is_named_once(alone: Any) -> None:
    def missing(world: Any, given: Any, got: Any) -> None:
        raise RuntimeError("ProcessGroupGloo does not support alltoall\nmore")

    kinds: tuple[Kind, ...] = (replace(KINDS["all_to_all"], call=missing), KINDS["broadcast"])
    rows = list(sweep(Config(kinds=kinds, sizes=(64, 128), iterations=1, warmup=0), alone))
    assert [row["kind"] for row in rows] == ["all_to_all", "broadcast", "broadcast"]
    expected = f"not with gloo of torch {torch.__version__}: ProcessGroupGloo does not support alltoall"
    assert rows[0]["note"] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-k", "all_reduce,all_shuffle"], "'all_shuffle' is not in the sweep"),
        (["-b", "1M", "-e", "1K"], "-b 1M -e 1K holds no size"),
        (["-b", "much"], "'much' is not a size"),
        (["-f", "1"], "-f 1 never ends"),
        (["-w", "-1"], "-w -1 is not a number"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["bench", "collectives", *words]) == 2
    assert message in capsys.readouterr().err
