"""What the panel's tabs are told: events, sums of an area, flame graphs, commands of findings, marks."""

from __future__ import annotations

import json
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from conftest import DATA, kernel_event, slice_event, write_kineto
from rankscope.analysis.core.result import Fact, Finding, argv
from rankscope.analysis.core.scope import Scope
from rankscope.readers import looks_like_a_trace
from rankscope.text.run_words import RunWords
from rankscope.timeline.run import Run
from rankscope.views.charts import CHARTS
from rankscope.views.envelope import finding_commands
from viewer_server import Viewer, serve, stop


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """Two ranks with a known call tree: an op of 100 µs that launches a kernel of 40, and one inside it of 30."""
    folder = tmp_path_factory.mktemp("viewer") / "it's planted"
    for rank in (0, 1):
        events: list[dict[str, Any]] = [
            slice_event("outer", 10, 100),
            slice_event("inner", 20, 30),
            slice_event("cudaLaunchKernel", 22, 2, cat="cuda_runtime", args={"correlation": 5}),
            kernel_event("gemm", 60, 40, correlation=5),
        ]
        write_kineto(folder / f"rank-{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
    viewer = serve(folder)
    yield viewer
    stop(viewer)


def _window(viewer: Viewer) -> dict[str, int]:
    run = viewer.ask("run")[1]
    return {"begin": run["begin_ns"], "end": run["end_ns"]}


def test_events_are_paged_sorted_and_filtered(planted: Viewer) -> None:
    asked = {**_window(planted), "ranks": "0,1", "sort": "dur_ns", "order": "descending"}
    answer = planted.ask("events", **asked, limit=3)[1]
    assert answer["count"] == 8 and answer["total_ns"] == 2 * 172_000
    assert [row["name"] for row in answer["rows"]] == ["outer", "outer", "gemm"]
    rest = planted.ask("events", **asked, limit=3, offset=3)[1]["rows"]
    assert [row["name"] for row in rest] == ["gemm", "inner", "inner"]
    assert planted.ask("events", **asked, text="STREAM")[1]["count"] == 2  # part of the track's label
    assert planted.ask("events", **asked, text="cpu_op")[1]["count"] == 4
    key = f"{rest[1]['rank']}.{rest[1]['segment']}.{rest[1]['id']}"
    assert planted.ask("events", **asked, slice=key)[1]["place"] == 4
    assert planted.ask("events", **asked, text="gemm", slice=key)[1]["place"] is None
    track = f"0.{rest[0]['segment']}.{rest[0]['track']}"
    assert [row["name"] for row in planted.ask("events", **asked, tracks=track)[1]["rows"]] == ["gemm"]
    assert planted.ask("events", **asked | {"sort": "colour"})[0] == 400


@pytest.mark.parametrize(
    ("by", "device", "host"),
    [
        ("name", [("gemm", 80_000)], [("outer", 200_000), ("inner", 60_000), ("cudaLaunchKernel", 4_000)]),
        ("category", [("kernel", 80_000)], [("cpu_op", 260_000), ("cuda_runtime", 4_000)]),
        ("rank", [(0, 40_000), (1, 40_000)], [(0, 132_000), (1, 132_000)]),
    ],
)
def test_an_area_is_summed_up_on_devices_and_hosts(
    by: str, device: list[Any], host: list[Any], planted: Viewer
) -> None:
    answer = planted.ask("area", **_window(planted), ranks="0,1", by=by)[1]
    found = [sorted((row[by], row["inside_ns"]) for row in answer[side]) for side in ("device", "host")]
    assert found == [sorted(device), sorted(host)]
    assert {share["rank"] for share in answer["shares"]} == {0, 1}


def test_an_area_counts_what_is_inside_it(planted: Viewer) -> None:
    gemm = planted.ask("find", name="gemm", at=-1, rank=0)[1]["found"]
    half = gemm["start_ns"] + gemm["dur_ns"] // 2
    (row,) = planted.ask("area", begin=gemm["start_ns"] - 5, end=half, ranks="0")[1]["device"]
    assert row["inside_ns"] == 20_000 and row["max_ns"] == 40_000
    assert planted.ask("area", begin=5, end=5)[0] == 400


def test_a_flame_graph_is_merged_over_ranks(planted: Viewer) -> None:
    both = planted.ask("flame")[1]
    assert (both["ranks"], both["total_ns"]) == (2, 200_000)
    (outer,) = both["children"]
    assert (outer["name"], outer["self_ns"], outer["children"][0]["total_ns"]) == ("outer", 140_000, 60_000)
    assert planted.ask("flame", ranks="1")[1]["total_ns"] == 100_000
    assert planted.ask("flame", time="device")[1]["total_ns"] == 80_000


def test_a_flame_graph_of_many_calls_takes_the_ranks_that_fit(
    planted: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.viewer.flame._MOST_FRAMES", 3)
    answer = planted.ask("flame")[1]
    assert answer["total_ns"] == 100_000 and answer["note"].startswith("Ranks 0 of 2")


def test_commands_of_a_finding_can_be_pasted() -> None:
    """The command of the advice, the report, the predicted gain; with the path as it is, quoted."""
    finding = Finding(
        "warning",
        "Rank 2 is late",
        ranks=(2,),
        facts=(Fact("example", "it came last"),),
        advice="List its kernels.",
        command=argv("rankscope stats RUN -r kernels --by rank --ranks 2"),
        report="faults",
        subject="rank 2",
    )
    runs = {"RUN": RunWords(("runs/it's mine",))}
    assert finding_commands(finding, runs) == [
        "rankscope stats 'runs/it'\"'\"'s mine' -r kernels --by rank --ranks 2",
        "rankscope stats 'runs/it'\"'\"'s mine' -r faults",
        "rankscope whatif 'runs/it'\"'\"'s mine' --rank 2=median",
    ]


@pytest.mark.slow
def test_every_finding_has_commands_with_the_real_path(slow2: Viewer) -> None:
    found = slow2.ask("findings")[1]["findings"]
    assert found
    assert found[0]["about"].startswith("A rank has more work than its peers\n")
    for one in found:
        for command in one["commands"]:
            words = shlex.split(command)
            assert words[0] == "rankscope" and words[2] == str(slow2.folder) and "RUN" not in words


def test_a_page_is_moved_and_told_so(slow2: Viewer) -> None:
    before = slow2.ask("place")[1]["number"]
    assert _post(slow2, "move", link="#v=1&finding=2")[0] == 200
    assert slow2.ask("place")[1] == {"number": before + 1, "link": "#v=1&finding=2"}
    assert _post(slow2, "move", method="GET", link="#v=1")[0] == 405
    for bad in ("javascript:alert(1)", "#v=1&x=<b>", "#v=1&t=" + "9" * 16_000, ""):
        assert _post(slow2, "move", link=bad)[0] == 400
    assert slow2.ask("place")[1]["number"] == before + 1


def _post(viewer: Viewer, route: str, method: str = "POST", **query: str) -> tuple[int, Any]:
    words = urlencode({"token": viewer.server.address.token, **query})
    base = "http://" + urlsplit(viewer.server.address.url).netloc
    request = urllib.request.Request(f"{base}/api/{route}?{words}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_marks_are_kept_beside_the_run_and_nobodys_are_overwritten(planted: Viewer) -> None:
    for name in ("first", "second"):
        status, answer = _post(planted, "keep-marks", marks=f"1000:{name}%2C")
        assert status == 200
        path = Path(answer["file"])
        assert path.parent == planted.folder and path.stat().st_mode & 0o077 == 0
        assert not looks_like_a_trace(path)
    (planted.folder / "broken.marks.rankscope.json").write_text("[")
    files = planted.ask("marks")[1]["files"]
    assert [file["marks"] for file in files] == [
        [{"at_ns": 1000, "name": "first,"}],
        [{"at_ns": 1000, "name": "second,"}],
    ]
    assert len({file["file"] for file in files}) == 2


def test_marks_are_written_by_post_alone(planted: Viewer) -> None:
    before = sorted(planted.folder.iterdir())
    for route in ("keep-marks", "keep-marks.json"):
        assert _post(planted, route, "GET", marks="1:x")[0] == 405
    assert _post(planted, "run")[0] == 405
    assert _post(planted, "keep-marks", marks="no time")[0] == 400
    assert sorted(planted.folder.iterdir()) == before


def test_marks_of_a_folder_that_cannot_be_written(planted: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("rankscope.viewer.bookmarks.create_json", fail)
    status, answer = _post(planted, "keep-marks", marks="1:x")
    assert status == 400 and "Read-only" in answer["why"] and "address" in answer["hint"]


def test_two_runs_answer_events_and_refuse_to_share(planted: Viewer, tmp_path: Path) -> None:
    shutil.copytree(planted.folder, tmp_path / "b", ignore=shutil.ignore_patterns(".rankscope"))
    viewer = serve(planted.folder, tmp_path / "b")
    window = _window(viewer)
    assert viewer.ask("events", **window, ranks="0,1000001")[1]["rows"][0]["rank"] == 0
    second = viewer.ask("events", **window, ranks="1000001", text="gemm")[1]
    (row,) = second["rows"]
    assert row["rank"] == 1_000_001
    key = f"{row['rank']}.{row['segment']}.{row['track']}"
    assert viewer.ask("events", **window, ranks="1000001", tracks=key)[1]["count"] == 1
    assert viewer.ask("area", **window, ranks="1000001", tracks=key)[1]["device"][0]["count"] == 1
    assert viewer.ask("flame", run="2")[1]["total_ns"] == 200_000
    status, answer = viewer.ask("share", **window)
    assert status == 400 and "one run" in answer["error"]
    stop(viewer)


@pytest.mark.slow
def test_the_charts_of_a_report_are_those_of_the_command(open_real: Callable[[Path], Run]) -> None:
    viewer = serve(DATA / "seqpar-gloo4-slow2")
    run = open_real(DATA / "seqpar-gloo4-slow2")
    charts = viewer.ask("charts", name="stragglers")[1]["charts"]
    for answer, name in zip(charts, ("stragglers", "lateness", "waits"), strict=True):
        drawn = CHARTS[name].make(run, Scope())
        assert (answer["title"], answer["svg"]) == (drawn.title, drawn.inline("drawn"))
    assert viewer.ask("charts", name="clocks")[1]["charts"] == []
    assert viewer.ask("charts", name="nonsense")[0] == 400
    stop(viewer)


def test_names_come_with_their_short_forms(tmp_path: Path) -> None:
    """Those of the tables of the command line; the page cuts them to its room, and nothing else."""
    write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 10, 100)])
    viewer = serve(tmp_path)
    window = {**_window(viewer), "ranks": "0"}
    (track,) = viewer.ask("tracks", rank=0)[1]["tracks"]
    tile = viewer.ask("tile.json", rank=0, segment=0, level=40, index=0, track=track["track"])[1]
    columns = viewer.ask("report", name="ops")[1]["columns"]
    (name,) = [column for column in columns if column["name"] == "name"]
    for short in (tile["short"], viewer.ask("flame", by="op")[1]["short"], name["short"]):
        assert short == {"aten::mm": "mm"}
    tables = [viewer.ask("search", q="mm")[1]["names"], viewer.ask("area", **window)[1]["host"]]
    tables.append(viewer.ask("events", **window)[1]["rows"])
    assert [(row["name"], row["short"]) for (row,) in tables] == [("aten::mm", "mm")] * 3
    stop(viewer)
