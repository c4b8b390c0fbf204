"""The server: who may ask, what comes back, and that it is what the store has."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import DATA, ROOT, kernel_event, open_trace, slice_event, write_kineto
from gpu_logs import SECOND, evenly, query_csv
from integration.jobs import free_port
from nsys_files import ExportFile
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.cli import main
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.viewer.address import Address
from rankscope.viewer.counters import _highest
from rankscope.viewer.perfetto import ORIGIN, PerfettoServer
from rankscope.viewer.server import CSP, Server
from rankscope.viewer.startup import Opening
from rankscope.views.export.perfetto import write_perfetto
from rankscope_bench.synthetic import Plan, write
from viewer_server import Viewer, serve, stop, watched


@pytest.mark.slow
def test_without_the_token_nothing_is_told(slow2: Viewer) -> None:
    for path in ("/api/run", "/js/main.js", "/api/run?token=wrong", "/api/state?token="):
        status, answer = slow2.get(path)
        assert status == 401 and "token" in answer["error"]
    for path in ("/", "/watch", "/?token=wrong"):
        status, page = slow2.get(path)
        assert status == 401 and b"js/login.js" in page and slow2.server.address.token.encode() not in page


def test_the_cookie_of_the_first_page_is_enough_for_the_rest(slow2: Viewer) -> None:
    name = f"rankscope-{slow2.server.address.port}"
    cookie = {"Cookie": f"{name}={slow2.server.address.token}"}
    assert slow2.get("/api/run", cookie)[0] == 200
    assert slow2.get("/js/main.js", cookie)[0] == 200
    assert slow2.get("/api/run", {"Cookie": f"{name}=other"})[0] == 401


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Host": ""}]
)
def test_other_hosts_and_origins_are_refused(headers: dict[str, str], slow2: Viewer) -> None:
    """A page elsewhere that resolves its own name to this address gets nothing, even with a cookie."""
    assert slow2.ask("run", headers)[0] == 403


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/js/../../server.py", "/%2e%2e/server.py", "/etc/passwd", "//etc/passwd", "/js"],
)
def test_no_path_leads_out_of_the_page(path: str, slow2: Viewer) -> None:
    status, answer = slow2.get(f"{path}?token={slow2.server.address.token}")
    assert status == 404 and "there is no" in answer["error"]


def test_pages_may_run_nothing_but_their_own() -> None:
    assert "script-src 'self'" in CSP and "unsafe" not in CSP and "default-src 'none'" in CSP


@pytest.mark.slow
def test_every_route_is_listed_and_answers(slow2: Viewer) -> None:
    """Each page and panel has a JSON twin."""
    run = slow2.ask("run")[1]
    slice = slow2.ask("find", name="gloo:all_reduce", at=-1)[1]["found"]
    key = {"rank": slice["rank"], "segment": slice["segment"], "id": slice["id"]}
    window = {"begin": run["begin_ns"], "end": run["end_ns"]}
    asked: dict[str, dict[str, Any]] = {
        "run": {}, "state": {}, "index": {}, "schema": {}, "findings": {}, "overview": {**window, "width": 8},
        "grid": {}, "tracks": {"rank": 0}, "counters": {"rank": 2},
        "counter": {"rank": 2, "name": "queue", "width": 5, **window},
        "tile": {"rank": 0, "segment": 0, "track": slice["track"], "level": 20, "index": 0}, "slice": key,
        "collective": key, "area": window, "search": {"q": "gloo"}, "find": {"name": "x", "at": 0},
        "neighbour": {**key, "by": 1}, "flows": {**window, "rank": 0, "name": "aten::mm"},
        "events": window, "charts": {"name": "stragglers"}, "roofline": {}, "marks": {}, "flame": {"ranks": 0},
        "share": {**window, "ranks": "2"}, "memory": {"rank": 0}, "place": {},
        "query": {"sql": "SELECT count(*) FROM slices"}, "report": {"name": "breakdown"},
    }  # fmt: skip
    assert set(asked) | {"diff", "keep-marks", "watch", "capture", "move"} == set(
        slow2.ask("index")[1]["routes"]
    )
    for name, query in asked.items():
        status, answer = slow2.ask(name, **query)
        assert status == 200, (name, answer)


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("nothing", {}),
        ("tile", {"rank": 9, "segment": 0, "track": 1, "level": 3, "index": 0}),
        ("tile", {"rank": 0, "segment": 0, "track": 1, "level": 99, "index": 0}),
        ("tile", {"rank": "x"}),
        ("slice", {"rank": 0, "segment": 0, "id": 10**12}),
        ("area", {"begin": 5, "end": 5}),
        ("report", {"name": "none"}),
        ("report", {"name": "breakdown", "steps": "9:3"}),
        ("query", {"sql": "DROP TABLE slices"}),
        ("query", {"sql": "SELECT * FROM read_csv('/etc/passwd')"}),
        ("diff", {}),
        ("flame", {"rank": 0, "by": "colour"}),
        ("search", {"q": "(", "regex": 1}),
        ("find", {"name": "x", "at": 0, "after": "1.2"}),
    ],
)
def test_questions_that_make_no_sense_say_so(name: str, query: dict[str, Any], slow2: Viewer) -> None:
    status, answer = slow2.ask(name, **query)
    assert status in (400, 404) and answer["error"]


@pytest.mark.slow
def test_tiles_hold_what_the_store_has(slow2: Viewer) -> None:
    """Counts of all tiles of a level add up to the slices of the track, at every level."""
    for track in slow2.ask("tracks", rank=2)[1]["tracks"]:
        for level in (27, 17):
            counted, names = 0, set()
            key = {"rank": 2, "segment": track["segment"], "track": track["track"], "level": level}
            for index in range(-1, (1 << 27 >> level) // 1024 + 1):
                tile = slow2.ask("tile", **key, index=index)[1]
                columns = tile["columns"]
                begin = index * 1024 << level
                fresh = [start >= begin for start in columns["start"]]
                counted += sum(count for count, own in zip(columns["count"], fresh, strict=True) if own)
                names |= set(tile["names"].values())
            assert counted == track["slices"], track["label"]
            assert names


def test_the_map_agrees_with_the_breakdown(slow2: Viewer) -> None:
    run = slow2.ask("run")[1]
    answer = slow2.ask("overview", begin=run["begin_ns"], end=run["end_ns"], width=1)[1]
    breakdown = REPORTS["breakdown"].analyse(Run(ingest([slow2.folder])), Scope(), None).rows
    whole = {row["rank"]: row for row in breakdown if row["step"] is None}
    for place, rank in enumerate(answer["ranks"]):
        share = whole[rank]["compute_ns"] / (run["end_ns"] - run["begin_ns"])
        assert abs(answer["columns"]["compute"][place] / 255 - share) <= 1 / 255


def test_less_nanoseconds_than_columns_are_not_unrecorded(slow2: Viewer) -> None:
    (hit,) = slow2.ask("query", sql="SELECT start_ns FROM gpu WHERE rank = 2 ORDER BY dur_ns DESC LIMIT 1")[
        1
    ]["rows"]
    window = {"begin": hit[0] + 50, "end": hit[0] + 60, "width": 1200, "ranks": 2}
    columns = slow2.ask("overview", **window)[1]["columns"]
    assert set(columns["compute"]) == {255} and set(columns["unrecorded"]) == {0}


def test_a_collective_names_who_came_last(slow2: Viewer) -> None:
    """Rank 2 is late at every reduce-scatter (data/README)."""
    sql = "SELECT rank, segment, id FROM collectives WHERE kind = 'reduce_scatter' AND rank = 0"
    slices = slow2.ask("query", sql=sql)[1]["rows"]
    assert len(slices) == 6
    for rank, segment, id in slices:
        answer = slow2.ask("collective", rank=rank, segment=segment, id=id)[1]
        assert answer["last"] == 2 and len(answer["rows"]) == 4
        waits = {row["rank"]: row["wait_ns"] for row in answer["rows"]}
        assert waits[2] == 0 and min(waits[rank] for rank in (0, 1, 3)) > 5e6


def test_a_slice_tells_what_it_is(slow2: Viewer) -> None:
    found = slow2.ask("find", name="aten::mm", at=-1)[1]["found"]
    slice = slow2.ask("slice", rank=found["rank"], segment=found["segment"], id=found["id"])[1]
    assert slice["name"] == "aten::mm" and slice["args"]["External id"]
    assert slice["compared"]["count"] == sum(slice["compared"]["histogram"]["counts"])
    assert any(other["category"] in ("cuda_runtime", "kernel") for other in slice["launched"])


def test_neighbours_stand_on_the_same_row(slow2: Viewer) -> None:
    found = slow2.ask("find", name="gloo:all_reduce", at=-1)[1]["found"]
    key = {"rank": found["rank"], "segment": found["segment"]}
    after = slow2.ask("neighbour", **key, id=found["id"], by=1)[1]["found"]
    assert after["start_ns"] >= found["start_ns"] + found["dur_ns"] and after["depth"] == found["depth"]
    assert slow2.ask("neighbour", **key, id=after["id"], by=-1)[1]["found"]["id"] == found["id"]


def test_the_flame_graph_adds_up(slow2: Viewer) -> None:
    for time in ("host", "device"):
        tree = slow2.ask("flame", ranks=2, time=time)[1]

        def check(node: dict[str, Any]) -> None:
            assert node["total_ns"] >= node["self_ns"] + sum(child["total_ns"] for child in node["children"])
            for child in node["children"]:
                check(child)

        assert tree["total_ns"] > 0
        check(tree)
    assert "--with-stack" in slow2.ask("flame", ranks=2, by="python")[1]["note"]


def test_counters_hold_their_value_between_points() -> None:
    times, values = np.array([10, 20, 30]), np.array([5.0, 1.0, 3.0])
    edges = np.array([0, 10, 15, 20, 25, 40, 50])
    assert _highest(times, values, edges).tolist() == [5.0, 5.0, 5.0, 1.0, 3.0, 3.0]


def test_counters_of_a_gpu_log_have_labels_and_units(tmp_path: Path) -> None:
    """A reason for throttling is listed only if it was active."""
    start = 1_794_701_458 * SECOND
    events = [kernel_event("k", start / 1000, 2_000_000, correlation=1)]
    write_kineto(tmp_path / "rank-0.json", events)
    log = evenly(start, start + 2 * SECOND, SECOND // 2, [0], reasons=0x20)
    (tmp_path / "smi.csv").write_text(query_csv(log))
    viewer = serve(tmp_path)
    found = {one["label"]: one for one in viewer.ask("counters", rank=0)[1]["counters"]}
    assert (found["GPU 0 SM clock"]["unit"], found["GPU 0 power"]["unit"]) == ("MHz", "W")
    assert found["GPU 0 utilization"]["unit"] == "percent"
    groups = {label: one["group"] for label, one in found.items()}
    assert {label for label, group in groups.items() if group == "clocks"} == {
        "GPU 0 SM clock", "GPU 0 power", "GPU 0 SW thermal slowdown",
    }  # fmt: skip
    assert found["GPU 0 SM clock"]["most"] == 1755 and found["GPU 0 utilization"]["most"] == 0
    assert [label for label in found if "slowdown" in label or "cap" in label] == [
        "GPU 0 SW thermal slowdown"
    ]
    window = {"begin": 0, "end": SECOND, "width": 4}
    answer = viewer.ask("counter", rank=0, name=found["GPU 0 SM clock"]["name"], **window)[1]
    assert answer["max"] == 1755
    stop(viewer)


@pytest.mark.slow
def test_queue_depth_is_what_was_planted(tmp_path: Path) -> None:
    """Three kernels launched at once wait for each other: depth 1, 2, then down again."""
    events: list[dict[str, Any]] = []
    for n in range(3):
        launch = slice_event("cudaLaunchKernel", 10 + n, 0.5, cat="cuda_runtime", args={"correlation": n + 1})
        events += [launch, kernel_event("k", 100 + 50 * n, 50, correlation=n + 1)]
    viewer = serve(write_kineto(tmp_path / "rank-0.json", events))
    sql = "SELECT min(start_ns) FROM slices"
    start = viewer.ask("query", sql=sql)[1]["rows"][0][0] - 10_000  # events begin at 10 µs
    window = {"begin": start, "end": start + 300_000, "width": 300}
    depth = viewer.ask("counter", rank=0, name="queue", **window)[1]["columns"]["value"]
    assert [depth[at] for at in (5, 11, 60, 120, 180, 260)] == [0, 2, 3, 2, 1, 0]
    stop(viewer)


@pytest.mark.slow
def test_two_runs_share_an_axis(slow2: Viewer, tmp_path: Path) -> None:
    viewer = serve(slow2.folder, DATA / "seqpar-gloo4-slow2")
    run = viewer.ask("run")[1]
    assert run["ranks"] == [0, 1, 2, 3, 1_000_000, 1_000_001, 1_000_002, 1_000_003]
    found = [
        viewer.ask("find", name="ProfilerStep#2", at=-(10**15), rank=rank)[1]["found"]
        for rank in (0, 1_000_000)
    ]
    assert found[0]["start_ns"] == found[1]["start_ns"] and found[1]["rank"] == 1_000_000
    rows = viewer.ask("diff")[1]["rows"]
    assert rows and {row["verdict"] for row in rows} == {"same"}
    window = {"begin": run["begin_ns"], "end": run["end_ns"]}
    share = [viewer.ask("area", **window, ranks=ranks)[1]["shares"] for ranks in ("0,1000000", "1000000")]
    assert [[each["rank"] for each in shares] for shares in share] == [[0], [1_000_000]]
    assert share[0][0]["compute"] == pytest.approx(share[1][0]["compute"])
    stop(viewer)


def test_the_phases_of_reading_are_over_when_the_run_is_open(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 1, 2)])
    for expected in (["read", "link"], []):  # the second time nothing is read
        opening = Opening([tmp_path], Options, lambda text: None)
        opening.start()
        assert opening.wait(60)
        phases = opening.state()["phases"]
        assert [phase["name"] for phase in phases if phase["done"]] == expected and len(phases) == len(
            expected
        )
        opening.close()


def test_a_run_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    from rankscope.store.ingest import Options

    said: list[str] = []
    opening = Opening([tmp_path / "nothing"], Options, said.append)
    assert opening.routes()["state"]({}) == {
        "state": "reading",
        "read_bytes": 0,
        "total_bytes": 0,
        "count": 0,
        "title": "nothing",
        "phases": [],
        "telemetry": False,
        "drops": 0,
    }
    viewer = watched(Server(Address("127.0.0.1", 0), opening.routes()), tmp_path, opening)
    client = HTTPConnection("127.0.0.1", viewer.server.address.port, timeout=30)
    client.request("GET", f"/api/run?token={viewer.server.address.token}")
    refused = client.getresponse()
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    client.close()
    opening.start()
    assert opening.wait(20)
    assert opening.state()["state"] == "failed" and "nothing" in said[0]
    assert viewer.ask("run")[0] == 400
    stop(viewer)


def test_perfetto_gets_its_file_and_nobody_else_does(tmp_path: Path) -> None:
    import threading
    import urllib.error
    import urllib.request

    trace = tmp_path / "trace"
    trace.write_bytes(b"x" * 100)
    server = PerfettoServer(trace, 0)
    threading.Thread(target=server.serve, daemon=True).start()
    url = server.url.partition("url=")[2]
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Origin": ORIGIN})) as answer:
        assert answer.read() == trace.read_bytes()
        assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    for other, origin in ((url, "https://evil.example"), (url.replace("trace", "other"), ORIGIN)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(other, headers={"Origin": origin}))
        refused.value.close()
    server.stop()


FAKE_TRACE_PROCESSOR = """\
#!{python}
# A fake: it answers on the port as trace_processor_shell --httpd does, with the arguments and the trace's size.
import http.server, json, os, sys
httpd, http_port, port, trace = sys.argv[1:]
assert (httpd, http_port) == ("--httpd", "--http-port")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([trace, os.path.getsize(trace), os.getpid()]).encode())

    def log_message(self, *args):
        pass

http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.mark.slow
def test_perfetto_with_a_fake_trace_processor(tmp_path: Path) -> None:
    """The selection is what it gets; Ctrl-C ends both."""
    fake = tmp_path / "fake_trace_processor"
    fake.write_text(FAKE_TRACE_PROCESSOR.format(python=sys.executable))
    fake.chmod(0o755)
    shutil.copytree(DATA / "ddp-gloo4", tmp_path / "run")
    port = free_port()
    words = ["view", str(tmp_path / "run"), "--perfetto", "--ranks", "1", "--no-args", "--no-open", "-q"]
    words += ["--port", str(port), "--trace-processor", str(fake)]
    process = subprocess.Popen(
        [sys.executable, "-m", "rankscope", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline().strip() == f"{ORIGIN}/#!/?rpc_port={port}"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=20) as answer:
        trace, size, pid = json.loads(answer.read())
    whole = io.BytesIO()
    run = open_trace(tmp_path / "run")
    write_perfetto(run, Scope(frozenset([1])), whole, with_args=False)
    assert size == len(whole.getvalue())
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "choose YES" in err and "Traceback" not in err
    assert not Path(trace).exists() and not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_perfetto_of_a_trace_that_is_too_large(
    slow2: Viewer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rankscope.viewer.perfetto.BROWSER_LIMIT", 100_000)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["view", str(slow2.folder), "--perfetto", "--no-open", "-q"]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "the trace is larger than 100.00 kB" in error
    assert all(word in error for word in ("--ranks 0-3 --steps", "--no-args", "trace_processor", "no limit"))
    assert main([*words, "--trace-processor", "/nowhere/trace_processor"]) == 1
    assert "there is no program /nowhere/trace_processor" in capsys.readouterr().err
    # One on PATH is used when it is needed. This fake ends at once.
    (tmp_path / "trace_processor").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "trace_processor").chmod(0o755)
    assert main([*words, "--port", str(free_port())]) == 1
    assert f"{tmp_path}/trace_processor ended with 3" in capsys.readouterr().err
    assert main(["view", str(slow2.folder), "--ranks", "0"]) == 2
    assert "--ranks is for --perfetto" in capsys.readouterr().err


def test_queries_that_wait_keep_nobody_else_waiting() -> None:
    done = threading.Event()

    def query(words: dict[str, str]) -> dict[str, str]:
        assert done.wait(60)
        return words

    server = Server(Address("127.0.0.1", 0), {"query": query, "run": lambda words: {"told": 1}})
    viewer = watched(server, Path(), Opening([Path()], Options, lambda text: None))
    waiting = [HTTPConnection("127.0.0.1", server.address.port, timeout=60) for _ in range(20)]
    try:
        for one in waiting:
            one.request("GET", f"/api/query?token={server.address.token}")
        assert viewer.ask("run") == (200, {"told": 1})
        done.set()
        assert {one.getresponse().status for one in waiting} == {200}
    finally:
        done.set()
        for one in waiting:
            one.close()
        server.stop()
        viewer.serving.join(10)


def test_a_port_that_is_taken(slow2: Viewer, capsys: pytest.CaptureFixture[str]) -> None:
    port = str(slow2.server.address.port)
    assert main(["view", str(slow2.folder), "--port", port, "--no-open"]) == 1
    assert "--port 0" in capsys.readouterr().err


@pytest.mark.slow
def test_all_tools_of_a_rank_are_drawn_and_counted_once(tmp_path: Path) -> None:
    """The same rank by torch and by nsys: one axis, tracks of both, the breakdown of one."""
    epoch = 1_700_000_000_000_000_000
    write_kineto(tmp_path / "rank-0.json", [kernel_event("by_torch", 10, 5)], baseTimeNanoseconds=epoch)
    nsys = ExportFile(tmp_path / "rank_0.sqlite").session(epoch).kernel("by_nsys", 12_000, 15_000)
    nsys.write()
    viewer = serve(tmp_path)
    labels = [track["label"] for track in viewer.ask("tracks", rank=0)[1]["tracks"]]
    assert labels == ["GPU 0 stream 7", "GPU 0 stream 7"]
    starts = [
        viewer.ask("find", name=name, at=-1)[1]["found"]["start_ns"] for name in ("by_torch", "by_nsys")
    ]
    assert starts[1] - starts[0] == 2_000
    rows = viewer.ask("report", name="breakdown")[1]["rows"]
    assert [row["compute_ns"] for row in rows] == [5_000]
    stop(viewer)


@pytest.mark.slow
def test_clocks_can_be_switched(tmp_path: Path) -> None:
    """Two ranks whose clocks are 3 ms apart: aligned by their collectives, or as they are."""
    write(Plan(ranks=2, events_per_rank=4_000, steps=3, max_offset_ns=3_000_000, seed=1), tmp_path)
    viewer = serve(tmp_path)
    apart = []
    for clocks in ("", "raw"):
        ends = {
            rank: viewer.ask("query", sql=f"SELECT max(start_ns + dur_ns) FROM collectives WHERE rank = {rank}",
                             clocks=clocks)[1]["rows"][0][0]
            for rank in (0, 1)
        }  # fmt: skip
        apart.append(abs(ends[0] - ends[1]))
    assert apart[0] < 1_000 < 100_000 < apart[1]
    assert viewer.ask("run")[1]["clocks"]["text"].startswith("clocks ±")
    assert viewer.ask("run", clocks="raw")[1]["clocks"]["text"] == "wall clocks"
    stop(viewer)
