"""Where findings are seen, how tracks are grouped, what search finds: answers of the server, without a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect
from rankscope.errors import UsageError
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.viewer.answers import Route
from rankscope.viewer.session import Session
from rankscope.viewer.startup import routes_of
from rankscope.viewer.timeline import rank_tracks
from rankscope.viewer.two_runs import align


@pytest.fixture(scope="module")
def slow(open_real: Callable[[Path], Run]) -> Session:
    """Four ranks over gloo; rank 2 runs slow_extra, and the others wait at every reduce_scatter (data/README)."""
    return Session(open_real(DATA / "seqpar-gloo4-slow2"), "slow2")


@pytest.fixture(scope="module")
def ask(slow: Session) -> dict[str, Route]:
    return routes_of(slow)


@pytest.mark.slow
def test_the_scene_of_a_straggler(slow: Session, ask: dict[str, Route]) -> None:
    answer: Any = ask["findings"]({})
    first, *others = answer["findings"]
    scene = first["scene"]
    assert (scene["ranks"], scene["peers"], scene["step"]) == ((2,), (0, 1, 3), 5)
    assert scene["collective"]["title"].startswith("reduce_scatter #") and scene["collective"]["last"] == 2
    waits = {row["rank"]: row["wait_ns"] for row in scene["collective"]["rows"]}
    assert waits[2] == 0 and min(waits[rank] for rank in (0, 1, 3)) > 10e6
    ((begin, end),) = slow.run.rows("SELECT min(end_ns - time_ns), max(end_ns) FROM steps WHERE step = 5")
    assert scene["begin_ns"] <= begin and end <= scene["end_ns"] < end + (end - begin) // 10
    assert {s["rank"] for s in scene["slices"]} == {2} and "slow_extra" in {
        s["name"] for s in scene["slices"]
    }
    for slice in scene["slices"]:
        assert scene["begin_ns"] <= slice["start_ns"] < scene["end_ns"]
    assert "host" not in scene["groups"]
    # The order is that of `stats`, and every scene is inside the run.
    titles = [found.title for found in collect(slow.run, Scope())]
    assert [finding["title"] for finding in answer["findings"]] == titles
    bounds = slow.bounds
    for finding in others:
        scene = finding["scene"]
        assert bounds[0] <= scene["begin_ns"] < scene["end_ns"] <= bounds[1] and scene["ranks"]


def test_a_limit_of_the_host_shows_it(ask: dict[str, Route]) -> None:
    answer: Any = ask["findings"]({})
    scene = next(finding["scene"] for finding in answer["findings"] if finding["report"] == "idle")
    assert "host" in scene["groups"] and scene["step"] is not None
    assert scene["end_ns"] - scene["begin_ns"] < 30e6


def test_streams_with_little_in_them_fold_and_annotations_stand_below_their_stream(slow: Session) -> None:
    tracks = rank_tracks(slow, 2)
    groups = [track["group"] for track in tracks]
    assert [group for at, group in enumerate(groups) if group not in groups[:at]] == [
        "communication", "streams", "more", "host",
    ]  # fmt: skip
    assert [track["short"] for track in tracks[:3]] == ["communication", "stream 7", "annotations"]
    folded = [track for track in tracks if track["group"] == "more"]
    assert len([track for track in folded if track["kind"] == "stream"]) == 18
    assert sum(track["share"] for track in folded if track["kind"] == "stream") < 0.01
    for stream, below in zip(folded[::2], folded[1::2], strict=True):
        assert (stream["kind"], below["kind"]) == ("stream", "annotation")
        assert stream["stream"] == below["stream"]
    assert tracks[1]["categories"] == ["gpu_memcpy", "gpu_memset", "kernel"]
    assert 0.7 < tracks[1]["share"] < 0.8


def test_waiting_is_apart_from_the_transfer(slow: Session, ask: dict[str, Route]) -> None:
    begin, end = slow.bounds
    _, columns = _columns(ask["overview"]({"begin": str(begin), "end": str(end), "width": "1"}))
    assert columns["wait"][2] < 5 < 150 < min(columns["wait"][rank] for rank in (0, 1, 3))
    header, tile = _columns(ask["tile"](_tile(rank=0, track=-1)))
    late = [at for at, name in enumerate(tile["name"]) if "reduce_scatter" in header["names"][str(name)]]
    assert len(late) == 6 and all(tile["last"][at] == 2 and tile["wait"][at] > 5e6 for at in late)
    assert (tile["wait"] <= tile["duration"]).all() and sorted(tile["match"]) == list(range(12))
    _, stream = _columns(ask["tile"](_tile(rank=2, track=rank_tracks(slow, 2)[1]["track"])))
    assert "wait" not in stream


def _tile(rank: int, track: int) -> dict[str, str]:
    return {"rank": str(rank), "segment": "0", "track": str(track), "level": "17", "index": "0"}


def _columns(answer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    assert isinstance(answer, tuple)
    return answer


def test_search_counts_and_walks_in_order(ask: dict[str, Route]) -> None:
    found: Any = ask["search"]({"q": "REDUCE_scatter"})
    assert found["count"] == sum(name["count"] for name in found["names"]) == 96
    assert {name["ranks"] for name in found["names"]} == {"0-3"}
    assert all("category" in name for name in found["names"])
    walked = []
    at: dict[str, str] = {"at": "-1"}
    while (answer := _find(ask, {"q": "reduce_scatter", **at}))["found"]:
        hit = answer["found"]
        walked.append((hit["start_ns"], hit["rank"], hit["segment"], hit["id"]))
        assert (answer["place"], answer["count"]) == (len(walked), 96)
        at = {"at": str(hit["start_ns"]), "after": f"{hit['rank']}.{hit['segment']}.{hit['id']}"}
    assert len(walked) == 96 and walked == sorted(walked)
    assert _find(ask, {"q": "reduce_scatter", **at, "direction": "previous"})["place"] == 95
    on_rank = _find(ask, {"name": "aten::mm", "at": "-1", "rank": "2"})
    assert (
        on_rank["found"]["rank"] == 2
        and on_rank["count"] < _find(ask, {"name": "aten::mm", "at": "-1"})["count"]
    )


def _find(ask: dict[str, Route], query: dict[str, str]) -> Any:
    return ask["find"](query)


def test_search_by_regular_expression(ask: dict[str, Route]) -> None:
    found: Any = ask["search"]({"q": r"^nvjet.*_NNT$", "regex": "1"})
    assert found["count"] == 60 and [name["ranks"] for name in found["names"]] == ["2"]
    literal: Any = ask["search"]({"q": r"^nvjet.*_NNT$"})
    assert literal["count"] == 0
    with pytest.raises(UsageError) as refused:
        ask["search"]({"q": "nvjet(", "regex": "1"})
    assert refused.value.why and refused.value.hint


def test_flows_lead_from_an_op_to_what_it_launched(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for n in (1, 2, 3):
        at = 100 * n
        events += [
            slice_event("aten::mm", at, 20, args={"External id": n}),
            slice_event("cudaLaunchKernel", at + 5, 2, cat="cuda_runtime", args={"correlation": n, "External id": n}),
            kernel_event("gemm", at + 30, 10, correlation=n, **{"External id": n}),
        ]  # fmt: skip
    session = Session(open_trace(write_kineto(tmp_path / "rank-0.json", events)), "x")
    start = session.run.rows("SELECT min(start_ns) FROM slices")[0][0]
    window = {"rank": "0", "begin": str(start + 50_000), "end": str(start + 1_000_000)}
    for name in ("aten::mm", "cudaLaunchKernel"):
        answer: Any = routes_of(session)["flows"]({**window, "name": name})
        assert len(answer["flows"]) == 2 and not answer["more"]  # the first is left of the window
        for source, target in answer["flows"]:
            assert source["track"] != target["track"] and target["start"] - source["start"] in (
                30_000,
                25_000,
            )


@pytest.mark.slow
def test_two_runs_are_aligned_without_negative_times(tmp_path: Path) -> None:
    first, second = (
        Session(Run(ingest([DATA / name], Options(cache=tmp_path))), name)
        for name in ("seqpar-gloo4-slow2", "ddp-gloo4")
    )
    for pair in ((first, second), (second, first)):
        align(*pair)
        starts = [one.run.rows("SELECT min(start_ns) FROM steps")[0][0] for one in pair]
        assert starts[0] == starts[1]
        assert min(one.bounds[0] for one in pair) >= 0
