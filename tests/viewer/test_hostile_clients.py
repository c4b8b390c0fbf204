"""Clients that are broken, slow or hostile: they get nothing, and the others are still answered."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, slice_event, write_kineto
from rankscope.cli import main
from rankscope.store.ingest import Options
from rankscope.viewer import listener
from rankscope.viewer.address import Address
from rankscope.viewer.answers import json_bytes
from rankscope.viewer.server import Server
from rankscope.viewer.startup import Opening
from viewer_server import Viewer, stop, watched


@pytest.fixture(scope="module")
def viewer() -> Iterator[Viewer]:
    """A server whose routes need no run."""
    routes = {
        "state": lambda query: {"state": "open"},
        "numbers": lambda query: {"values": [1.5, float("nan"), float("inf")]},
        "large": lambda query: {"text": "x" * 40_000_000},
        "broken": lambda query: {"": 1 // 0},
    }
    opening = Opening([], Options, lambda text: None)
    started = watched(Server(Address("127.0.0.1", 0), routes), Path(), opening)  # type: ignore[arg-type]
    yield started
    stop(started)


def _connect(viewer: Viewer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", viewer.server.address.port), timeout=20)


def _raw(viewer: Viewer, request: bytes) -> bytes:
    """What the server sends to these bytes, until it closes the connection."""
    with _connect(viewer) as client:
        client.sendall(request)
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(65536):
                received += piece
    return received


def _request(viewer: Viewer, path: str = "/api/state", **headers: str) -> bytes:
    given = {"Host": f"127.0.0.1:{viewer.server.address.port}", "Connection": "close", **headers}
    lines = [f"GET {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_foreign_cookies_do_not_break_the_login(viewer: Viewer) -> None:
    own = f"rankscope-{viewer.server.address.port}={viewer.server.address.token}"
    for cookie in (f"a,b=1; {own}", f"{own}; a,b=1", f'x="; {own}', f"=; ;;{own}", f"caf\xe9=1; {own}"):
        assert _status(_raw(viewer, _request(viewer, Cookie=cookie))) == 200, cookie


@pytest.mark.parametrize(
    "origin", ["http://[", "null", "http://127.0.0.1:1", "javascript:", "https://evil.example"]
)
def test_an_origin_that_is_no_address_is_refused(origin: str, viewer: Viewer) -> None:
    token = viewer.server.address.token
    assert _status(_raw(viewer, _request(viewer, f"/api/state?token={token}", Origin=origin))) == 403


def test_requests_of_other_sites_are_refused_and_links_are_not(viewer: Viewer) -> None:
    """Another port of 127.0.0.1 is the same site to a browser, which then sends the cookie."""
    token = viewer.server.address.token
    for site, mode, path, status in (
        ("same-site", "no-cors", "/api/state", 403),
        ("cross-site", "cors", "/js/main.js", 403),
        ("cross-site", "navigate", "/api/state", 403),
        ("cross-site", "navigate", "/", 200),
        ("cross-site", "navigate", "/watch", 200),
        ("same-origin", "cors", "/api/state", 200),
        ("none", "navigate", "/api/state", 200),
    ):
        request = _request(viewer, f"{path}?token={token}", Sec_Fetch_Site=site, Sec_Fetch_Mode=mode)
        assert _status(_raw(viewer, request)) == status, (site, mode, path)


def test_the_cookie_is_strict_and_every_answer_has_its_headers(viewer: Viewer) -> None:
    first = (
        _raw(viewer, _request(viewer, f"/?token={viewer.server.address.token}")).split(b"\r\n\r\n")[0].lower()
    )
    assert f"rankscope-{viewer.server.address.port}=".encode() in first
    assert b"httponly" in first and b"samesite=strict" in first
    for path in ("/", "/watch", "/style.css", "/js/login.js"):  # nobody gets the cookie without the token
        assert b"set-cookie" not in _raw(viewer, _request(viewer, f"{path}?token=wrong")).lower()
    for path in ("/", "/api/state", "/nothing", "/api/broken"):
        for token in ("", viewer.server.address.token):
            answer = _raw(viewer, _request(viewer, f"{path}?token={token}")).lower()
            for header in (
                b"content-security-policy: default-src 'none'",
                b"nosniff",
                b"no-store",
                b"no-referrer",
            ):
                assert header in answer, (path, header)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\0\0\0\0\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /api/state HTTP/9.9\r\nConnection: close\r\n\r\n", 403),
        (b"GET /api/state HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA\0B: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 500_000 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123456789", 413),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"DELETE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 401),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_http_gets_an_error(request_: bytes, status: int, viewer: Viewer) -> None:
    assert _status(_raw(viewer, request_)) == status
    assert viewer.ask("state")[0] == 200


def test_only_get_is_allowed(viewer: Viewer) -> None:
    request = _request(viewer, f"/api/state?token={viewer.server.address.token}")
    assert _status(_raw(viewer, b"DELETE" + request[3:])) == 405
    head = _raw(viewer, b"HEAD" + request[3:])
    assert _status(head) == 200 and head.endswith(b"\r\n\r\n")


def test_nan_and_infinity_become_null(viewer: Viewer) -> None:
    assert viewer.ask("numbers") == (200, {"values": [1.5, None, None]})
    assert json.loads(json_bytes([float("-inf")])) == [None]


def test_a_route_that_fails_is_an_error_of_three_parts(viewer: Viewer) -> None:
    status, answer = viewer.ask("broken")
    assert status == 500 and "ZeroDivisionError" in answer["why"] and answer["hint"]


@pytest.mark.slow
def test_half_open_and_slow_clients_are_closed(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing sent; a header byte by byte; an answer that is never taken. Others are answered meanwhile."""
    monkeypatch.setattr(listener, "DEADLINE_SECONDS", 0.3)
    token = viewer.server.address.token
    silent, trickling, deaf = (_connect(viewer) for _ in range(3))
    deaf.sendall(_request(viewer, f"/api/large?token={token}"))
    closed = time.monotonic() + 60
    with silent, trickling, deaf:
        for byte in b"GET /api/state HTTP/1.1\r\n" * 20:
            try:
                trickling.sendall(bytes([byte]))
            except ConnectionError:
                break
            assert time.monotonic() < closed
            time.sleep(0.05)
            assert viewer.ask("state")[0] == 200
        with contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""
        while viewer.server._uvicorn.server_state.connections:  # the deaf one's
            assert time.monotonic() < closed
            time.sleep(0.05)
        received = 0
        with contextlib.suppress(ConnectionError):
            while piece := deaf.recv(1 << 20):
                received += len(piece)
        assert received < 40_000_000


def test_more_connections_than_the_limit(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest silent one makes room; a client with a request is answered."""
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 20)
    with contextlib.ExitStack() as all_of_them:
        clients = [all_of_them.enter_context(_connect(viewer)) for _ in range(60)]
        assert viewer.ask("state")[0] == 200
        with contextlib.suppress(ConnectionError):
            assert clients[0].recv(1) == b""


def test_a_failure_of_any_kind_while_opening_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the errors that were foreseen: the page would wait for ever."""
    monkeypatch.setattr("rankscope.timeline.run.open_run", lambda *_, **__: dict[str, int]()["no such key"])
    said: list[str] = []
    opening = Opening([tmp_path], Options, said.append)
    opening.start()
    assert opening.wait(20)
    state = opening.state()
    assert state["state"] == "failed" and "KeyError" in state["why"] and said


@pytest.mark.slow
def test_ctrl_c_ends_the_viewer_and_its_queries(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank-0.json", [slice_event("a", 0, 5)])
    process = subprocess.Popen(
        [sys.executable, "-m", "rankscope", "view", str(tmp_path), "--no-open"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    address, _, token = process.stdout.readline().strip().partition("/?token=")
    port = int(address.rpartition(":")[2])

    def ask(route: str) -> Any:
        with urllib.request.urlopen(f"{address}/api/{route}token={token}", timeout=60) as answer:
            return json.load(answer)

    while ask("state?")["state"] == "reading":
        time.sleep(0.05)
    ask("query?sql=SELECT+1&")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    (query,) = {word for file in children.parents[1].glob("*/children") for word in file.read_text().split()}
    with socket.create_connection(("127.0.0.1", port)) as client:
        sql = "SELECT+count(*)+FROM+range(100000000000)+a,range(1000)+b"
        client.sendall(
            f"GET /api/query?token={token}&sql={sql} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        )
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in errors
    assert not Path(f"/proc/{query}").exists()


def test_a_python_without_the_server_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Images for jobs hold what capturing needs."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["view", str(tmp_path), "--no-open"]) == 1
    assert "pip install starlette uvicorn" in capsys.readouterr().err
