"""Files that are dropped onto the page of `view --drop`: the trace opens; nobody else can send any, and limits hold."""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from conftest import DATA, kernel_event, slice_event, write_kineto
from rankscope.cli import main
from rankscope.store.ingest import Options
from rankscope.viewer import dropped
from rankscope.viewer.address import Address
from rankscope.viewer.dropped import Dropped
from rankscope.viewer.server import Server
from rankscope.viewer.startup import Opening
from viewer_server import Screen, Viewer, stop, watched

MOST = 4_000_000


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    """A server as `view --drop` starts it, with less room."""
    opening = Opening([], Options, lambda text: None)
    taking = Dropped(opening.show, MOST)
    started = watched(Server(Address("127.0.0.1", 0), opening.routes(), dropped=taking), Path(), opening)
    yield started
    stop(started)
    taking.close()


def trace(path: Path) -> Path:
    return write_kineto(path, [slice_event("aten::mm", 1, 900), kernel_event("dropped_kernel", 5, 890)])


def send(
    viewer: Viewer, route: str, body: bytes | None = b"", /, *, headers: Any = None, **query: Any
) -> Any:
    """Status and answer of a POST."""
    address = viewer.server.address
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=20)
    words = urlencode({"token": address.token, **query})
    connection.request("POST", f"/api/{route}?{words}", body, headers or {})
    with connection.getresponse() as answer:
        content = answer.read()
    connection.close()
    return answer.status, json.loads(content) if content else None


def begin(viewer: Viewer, size: int, **query: Any) -> Any:
    """Status and answer of a client that sends less than it said."""
    connection = http.client.HTTPConnection("127.0.0.1", viewer.server.address.port, timeout=20)
    words = urlencode({"token": viewer.server.address.token, **query})
    connection.putrequest("POST", f"/api/drop?{words}")
    connection.putheader("Content-Length", str(size))
    connection.endheaders(b"half")
    with connection.getresponse() as answer:
        assert answer.headers["connection"] == "close"
        status, content = answer.status, json.loads(answer.read())
    connection.close()
    return status, content


def folder_of(viewer: Viewer) -> Path:
    return viewer.server._dropped._folder  # type: ignore[union-attr]


def test_a_trace_that_is_sent_is_opened_and_replaced_by_the_next(viewer: Viewer, tmp_path: Path) -> None:
    assert viewer.ask("state")[1]["state"] == "waiting"
    status, answer = viewer.ask("run")
    assert status == 400 and "no run is open" in answer["error"]
    assert viewer.ask("watch")[0] == 400 and send(viewer, "open-dropped")[0] == 400
    for name in ("first.json", "second.json"):
        content = trace(tmp_path / name).read_bytes()
        assert send(viewer, "drop", content, name=name, first=1) == (200, {"bytes": len(content)})
        assert send(viewer, "open-dropped")[0] == 200
        assert viewer.opening.wait(60)
        run = viewer.ask("run")[1]
        assert (run["title"], run["places"], run["ranks"]) == (name, [name], [0])
    assert not (folder_of(viewer) / "first.json").exists()
    assert folder_of(viewer).stat().st_mode & 0o077 == 0
    status, answer = send(viewer, "keep-marks", marks="5:here")
    assert status == 400 and "temporary folder" in answer["why"]


def test_what_is_no_trace_is_said_and_the_server_goes_on(viewer: Viewer, tmp_path: Path) -> None:
    send(viewer, "drop", b"a letter", name="letter.txt", first=1)
    send(viewer, "open-dropped")
    assert viewer.opening.wait(60)
    state = viewer.ask("state")[1]
    assert state["state"] == "failed" and state["drops"] and not viewer.opening.has_failed
    assert "letter.txt" in state["error"] and str(folder_of(viewer)) not in state["error"]
    send(viewer, "drop", trace(tmp_path / "good.json").read_bytes(), name="good.json", first=1)
    send(viewer, "open-dropped")
    assert viewer.opening.wait(60) and viewer.ask("run")[0] == 200


OUTSIDE = ("../up.json", "/root.json", "a/../../b.json", "a//b", "", ".", "..", "a\\b", "a\0b", "a\nb")
HIDDEN = (".rankscope/index.json", "a/.hidden")
LONG = ("x" * 501, "n" * 300)


@pytest.mark.parametrize("name", [*OUTSIDE, *HIDDEN, *LONG])
def test_a_name_that_leaves_its_folder_is_refused(name: str, viewer: Viewer) -> None:
    status, answer = send(viewer, "drop", b"{}", name=name, first=1)
    assert status == 400 and answer["error"] and answer["hint"]
    assert [path for path in folder_of(viewer).parent.rglob("*") if path.is_file()] == []


def test_limits_of_size_number_and_time(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert send(viewer, "drop", b"x" * 3_000_000, name="a", first=1)[0] == 200
    status, answer = begin(viewer, 1_500_000, name="b")
    assert status == 400 and "too large" in answer["error"] and "rankscope view FOLDER" in answer["hint"]
    assert not (folder_of(viewer) / "b").exists()
    monkeypatch.setattr(dropped, "_MOST_FILES", 2)
    parts: list[dict[str, Any]] = [{"name": "c", "first": 1}, {"name": "d"}, {"name": "e"}]
    assert [send(viewer, "drop", b"x", **part)[0] for part in parts] == [200, 200, 400]
    assert send(viewer, "drop", b"x", name="c")[0] == 400  # is there already
    # A client that stops in the middle.
    monkeypatch.setattr(dropped, "PROGRESS_SECONDS", 0.2)
    status, answer = begin(viewer, 100, name="slow", first=1)
    assert status == 400 and "stopped arriving" in answer["why"]


def test_only_the_page_can_send(viewer: Viewer, slow2: Viewer) -> None:
    host = f"127.0.0.1:{viewer.server.address.port}"
    for headers in (
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
    ):
        assert send(viewer, "drop", b"{}", name="a", headers=headers)[0] == 403
    assert (
        send(viewer, "drop", b"{}", name="a", token="wrong", headers={"Origin": f"http://{host}"})[0] == 401
    )
    assert viewer.get(f"/api/drop?token={viewer.server.address.token}&name=a")[0] == 405
    assert send(viewer, "move", b"{}", link="#v=1")[0] == 413  # no other route has a body
    assert not folder_of(viewer).exists()
    # The server of a run takes nothing.
    assert send(slow2, "drop", b"{}", name="a")[0] == 413 and send(slow2, "drop", b"", name="a")[0] == 404
    assert send(slow2, "open-dropped")[0] == 404


def test_the_folder_goes_with_the_server() -> None:
    taking = Dropped(lambda path: None)
    root = folder = taking._folder.parent
    assert root.exists()
    taking.close()
    assert not folder.exists()


@pytest.mark.slow
def test_it_goes_when_the_command_is_terminated(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rankscope", "view", "--drop", "--no-open"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url, timeout=60) as page:  # answered when it serves
            assert page.status == 200
        assert len(list(tmp_path.glob("rankscope-dropped-*"))) == 1
        process.terminate()
    assert list(tmp_path.glob("rankscope-dropped-*")) == []


@pytest.mark.parametrize("more", [["RUN"], ["--perfetto"]])
def test_drop_is_alone(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "--drop", *more]) == 2
    assert "--drop is not for" in capsys.readouterr().err


DROP = """(files) => {
  const dropped = new DataTransfer();
  for (const [name, content] of files) {
    dropped.items.add(new File([Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0))], name));
  }
  document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: dropped, bubbles: true, cancelable: true }));
}"""


def drop(screen: Screen, *paths: Path) -> None:
    files = [[path.name, base64.b64encode(path.read_bytes()).decode()] for path in paths]
    screen.page.evaluate(DROP, files)


@pytest.mark.slow
def test_a_trace_is_dropped_then_no_trace_then_all_ranks(
    viewer: Viewer, screen: Screen, tmp_path: Path
) -> None:
    page = screen.page
    page.goto(viewer.url)
    page.wait_for_selector(".drop")
    assert "Drop a trace" in page.inner_text("#verdict h1") and page.is_visible("text=Choose a folder")
    drop(screen, trace(tmp_path / "rank-0.json"))
    page.wait_for_selector("body[data-ready=true]", timeout=60_000)
    assert page.inner_text("#title").startswith("rank-0.json") and page.evaluate(
        "window.rankscope.run.ranks"
    ) == [0]
    # The page with a run takes the next drop. What is no trace is said, and there is a place for another.
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear all,")
    drop(screen, letter)
    page.wait_for_selector(".drop", timeout=60_000)
    assert "letter.txt" in page.inner_text("#verdict h1")
    page.evaluate("""() => {
      const large = new File([], 'large.json');
      Object.defineProperty(large, 'size', { value: 5e9 });
      const dropped = { items: [{ kind: 'file', getAsFile: () => large }] };
      const drop = new Event('drop', { bubbles: true, cancelable: true });
      document.body.dispatchEvent(Object.assign(drop, { dataTransfer: dropped }));
    }""")
    page.wait_for_selector("#message:not([hidden])")
    assert "5.00 GB" in page.inner_text("#message") and "rankscope view FOLDER" in page.inner_text("#message")
    files = sorted((DATA / "seqpar-gloo4-slow2").glob("rank-*.json.gz"))
    assert len(files) == 4
    page.set_input_files("input[aria-label='Choose files']", files)  # as the button does
    page.wait_for_selector("body[data-ready=true]", timeout=60_000)
    assert page.evaluate("window.rankscope.run.ranks") == [0, 1, 2, 3]
    assert "Rank 2" in page.inner_text("#verdict h1")


@pytest.mark.slow
def test_a_folder_is_sent_with_its_files(viewer: Viewer, screen: Screen, tmp_path: Path) -> None:
    page = screen.page
    run = tmp_path / "my run"
    (run / ".hidden").mkdir(parents=True)
    (run / ".hidden" / "store").write_text("not ours")
    trace(run / "rank-0.json")
    page.goto(viewer.url)
    page.wait_for_selector(".drop")
    page.set_input_files("input[aria-label='Choose a folder']", run)
    page.wait_for_selector("body[data-ready=true]", timeout=60_000)
    assert page.inner_text("#title").startswith("my run")
    assert [path.name for path in (folder_of(viewer) / "my run").iterdir() if path.name == ".hidden"] == []


@pytest.mark.slow
def test_the_page_of_a_run_takes_nothing_and_says_how(slow2: Viewer, screen: Screen, tmp_path: Path) -> None:
    page = screen.open(slow2.url).page
    drop(screen, trace(tmp_path / "rank-0.json"))
    page.wait_for_selector("#message:not([hidden])")
    assert "takes no files" in page.inner_text("#message")
    assert "rankscope view --drop" in page.inner_text("#message")
