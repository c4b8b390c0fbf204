"""The viewer's real server, over real sockets, with clients that are broken, slow, curious or hostile.

After each trial a good client is answered, the server has printed no traceback and holds no more memory than allowed,
and the files of the store are what they were.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO, Any
from urllib.parse import quote, urlencode

from conftest import ROOT
from faults.outcome import Outcome, Part
from rankscope_bench.synthetic import Plan, write
from sql_statements import HARMFUL

_MOST_MEMORY = 600 << 20
_PATIENCE_SECONDS = 90
_ENDLESS = (
    "SELECT count(*) FROM range(100000000000) a, range(1000) b",
    "WITH RECURSIVE t(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM t) SELECT max(a) FROM t",
    "SELECT sum(a.range * b.range) OVER (ORDER BY b.range) FROM range(100000) a, range(100000) b",
)
_LARGE = (
    "SELECT * FROM range(1000000000000)",
    "SELECT repeat('x', 4000000000)",
    "SELECT repeat('x', 1000000) FROM range(100000)",
    "SELECT range(2000000000)",
    "SELECT list(range) FROM range(1000000000)",
    "SELECT a.range FROM range(1000000000) a ORDER BY hash(a.range)",
)


@dataclass
class Viewer:
    """`rankscope view` as a process."""

    process: subprocess.Popen[str]
    errors: IO[str]
    store: Path
    port: int
    token: str

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE_SECONDS)

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_SECONDS)
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ask(self, route: str, **query: Any) -> tuple[int, Any]:
        status, body = self.get(f"/api/{route}?{urlencode({'token': self.token, 'format': 'json', **query})}")
        return status, json.loads(body)

    def send(self, request: bytes) -> bytes:
        """The first bytes that come back; nothing when the server closes the connection or waits for more."""
        with self.connect() as client:
            client.settimeout(3)
            with contextlib.suppress(OSError):
                client.sendall(request)
                return client.recv(65536)
        return b""

    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Viewer]:
    run = folder / "run"
    write(Plan(ranks=2, events_per_rank=2_000, steps=2, seed=1), run)
    with (folder / "errors").open("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "rankscope", "view", str(run), "--no-open"],
            stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        assert process.stdout
        address, _, token = process.stdout.readline().strip().partition("/?token=")
        viewer = Viewer(process, errors, run / ".rankscope", int(address.rpartition(":")[2]), token)
        try:
            while viewer.ask("state")[1]["state"] == "reading":
                time.sleep(0.1)
            yield viewer
        finally:
            process.terminate()
            process.communicate(timeout=60)


def _contents(store: Path) -> dict[str, str]:
    """The files of a store without those that a viewer makes for itself."""
    files = (path for path in sorted(store.rglob("*")) if path.is_file())
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if "derived" not in path.parts
    }


def _status(answer: bytes) -> int:
    words = answer.split(b" ", 2)
    return int(words[1]) if answer.startswith(b"HTTP/1.1 ") and words[1].isdigit() else 0


# A kind of abuse: what was done, and what is wrong about the answer ("" when it is as promised).
Abuse = Callable[[Viewer, Random], tuple[str, str]]


def _refused(viewer: Viewer, request: bytes) -> tuple[str, str]:
    """An answer of 4xx, or none."""
    status = _status(viewer.send(request))
    return repr(request[:80]), "" if status == 0 or 400 <= status < 500 else f"answered {status}"


def _request_line(viewer: Viewer, random: Random) -> tuple[str, str]:
    line = random.choice(
        (
            random.randbytes(random.randrange(1, 2000)),
            b"GET",
            b"GET  / HTTP/1.1",
            b"GET / HTTP/1.1 HTTP/1.1",
            b"GET / HTTP/%d.%d" % (random.randrange(99), random.randrange(99)),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(200),
            b"GET " + b"/a" * random.randrange(1, 300_000) + b" HTTP/1.1",
            b"PRI * HTTP/2.0",
            b"CONNECT 127.0.0.1:22 HTTP/1.1",
            b"GET http://evil.example/ HTTP/1.1",
            b"\r\n\r\n\r\nGET / HTTP/1.1",
        )
    )
    return _refused(viewer, line + b"\r\nHost: " + viewer.host.encode() + b"\r\n\r\n")


def _header(viewer: Viewer, random: Random) -> tuple[str, str]:
    header = random.choice(
        (
            b"X: " + b"a" * random.randrange(70_000, 2_000_000),
            b"\r\n".join([b"X: a"] * random.randrange(120, 20_000)),
            b"X\0Y: 1",
            b"X: \0",
            b"caf\xe9: 1",
            b" folded: 1",
            b"no colon",
            b": no name",
            b"Host: " + viewer.host.encode(),
            b"Content-Length: -1",
            b"Content-Length: 1e9",
            b"Transfer-Encoding: gzip, chunked",
            b"Expect: 100-continue\r\nContent-Length: 5",
            b"Upgrade: websocket\r\nConnection: upgrade",
            random.randbytes(300),
        )
    )
    return _refused(
        viewer, b"GET / HTTP/1.1\r\nHost: " + viewer.host.encode() + b"\r\n" + header + b"\r\n\r\n"
    )


def _method(viewer: Viewer, random: Random) -> tuple[str, str]:
    method = random.choice(("POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "BREW", "get", "X" * 5000))
    path = random.choice(("/", "/api/state", "/api/query", "/js/main.js"))
    request = f"{method} {path}?token={viewer.token} HTTP/1.1\r\nHost: {viewer.host}\r\n\r\n"
    return _refused(viewer, request.encode())


def _body(viewer: Viewer, random: Random) -> tuple[str, str]:
    head = f"GET /api/state?token={viewer.token} HTTP/1.1\r\nHost: {viewer.host}\r\n".encode()
    body = random.choice(
        (
            b"Content-Length: 1000000000\r\n\r\n" + b"x" * random.randrange(1_000_000),
            b"Transfer-Encoding: chunked\r\n\r\n" + b"ffffffffffffffff\r\n" + b"x" * 1000,
            b"Transfer-Encoding: chunked\r\n\r\n" + b"zz\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n" + b"1;a=" + b"b" * 100_000 + b"\r\nx\r\n",
            b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nGET /api/query HTTP/1.1\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000,
        )
    )
    return _refused(viewer, head + body)


def _half_open(viewer: Viewer, random: Random) -> tuple[str, str]:
    """Some connections with a part of a request; a good client is answered meanwhile."""
    request = f"GET /api/state?token={viewer.token} HTTP/1.1\r\nHost: {viewer.host}\r\n\r\n".encode()
    count = random.randrange(5, 60)
    with contextlib.ExitStack() as held:
        for _ in range(count):
            client = held.enter_context(viewer.connect())
            client.sendall(request[: random.randrange(len(request) - 1)])
        status = viewer.ask("state")[0]
    return f"{count} connections", "" if status == 200 else f"a good client got {status}"


def _slow(viewer: Viewer, random: Random) -> tuple[str, str]:
    """A request byte by byte, and an answer that is not taken."""
    path = f"/api/overview?token={viewer.token}&begin=0&end=100000000&width=4096&format=json"
    request = f"GET {path} HTTP/1.1\r\nHost: {viewer.host}\r\n\r\n".encode()
    with viewer.connect() as slow, viewer.connect() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(request * random.randrange(1, 20))
        for byte in request[: random.randrange(5, 20)]:
            slow.sendall(bytes([byte]))
            status = viewer.ask("state")[0]
            if status != 200:
                return "byte by byte", f"a good client got {status}"
    return "byte by byte", ""


def _flood(viewer: Viewer, random: Random) -> tuple[str, str]:
    with contextlib.ExitStack() as held:
        for _ in range(500):
            client = held.enter_context(viewer.connect())
            if random.random() < 0.5:
                with contextlib.suppress(OSError):
                    client.sendall(b"GET / HTTP/1.1\r\n")
        status = viewer.ask("state")[0]
    return "500 connections", "" if status == 200 else f"a good client got {status}"


_VALUES = (
    "", "-1", "0", "1", "9" * 18, "9" * 19, "-" + "9" * 25, "9" * 5000, "1e9", "nan", "inf", "0x10", "\u0663", "null",
    "a" * 20_000, "\0", "\ud7ff\uffff", "' OR 1=1 --", "../../etc/passwd", "%00", "\r\nSet-Cookie: a=b", "<script>",
    "1,2,3", "0," * 5000, "*", "memory/0/0", "memory/a/b", "counter/x/y", "queue", "1:2", "2:1", "breakdown", "raw",
    "json",
)  # fmt: skip
_PARAMETERS = (
    "rank", "ranks", "segment", "track", "level", "index", "begin", "end", "width", "name", "by", "id", "q", "at",
    "direction", "steps", "top", "window", "time", "sql", "clocks", "format", "run",
)  # fmt: skip


def _parameters(viewer: Viewer, random: Random) -> tuple[str, str]:
    """Every route, once with each parameter plausible, and some of them replaced."""
    plausible = {
        "rank": "0", "segment": "0", "track": "1", "level": "20", "index": "0", "begin": "0", "end": "1000000",
        "width": "8", "name": random.choice(("queue", "breakdown", "aten::mm")), "by": "1", "q": "a", "at": "0",
        "sql": "SELECT 1", "id": "5",
    }  # fmt: skip
    wrong = []
    for route in viewer.ask("index")[1]["routes"]:
        changed = {
            name: random.choice(_VALUES) for name in random.sample(_PARAMETERS, random.randrange(1, 4))
        }
        words = "&".join(f"{name}={quote(value)}" for name, value in {**plausible, **changed}.items())
        status, body = viewer.get(f"/api/{route}?token={viewer.token}&{words}")
        if status not in (200, 400, 404, 405, 431) or len(body) > 50_000_000:
            wrong.append(f"{route} {changed}: {status} {body[:300]!r}")
    return "all routes", "; ".join(wrong)


def _stranger(viewer: Viewer, random: Random) -> tuple[str, str]:
    """Without the token, from another site, or with names that are not ours: nothing but the refusal."""
    cookie = f"rankscope-{viewer.port}={viewer.token}"
    wrong_token = random.choice(
        ("", "x", viewer.token[:-1], viewer.token + "x", viewer.token.lower() + " ", "\u0660" * 22, "%00")
    )
    headers, token, wanted = random.choice(
        (
            ({}, wrong_token, 401),
            (
                {"Cookie": f"rankscope-{viewer.port}={wrong_token}".encode("ascii", "replace").decode()},
                "",
                401,
            ),
            ({"Cookie": f"rankscope-{viewer.port + 1}={viewer.token}"}, "", 401),
            ({"X-Rankscope-Token": "wrong", "Cookie": cookie}, "", 401),
            ({"Host": "evil.example"}, viewer.token, 403),
            ({"Host": f"127.0.0.1.nip.io:{viewer.port}"}, viewer.token, 403),
            ({"Host": f"127.0.0.1:{viewer.port}@evil.example"}, viewer.token, 403),
            ({"Origin": "https://evil.example"}, viewer.token, 403),
            ({"Origin": "http://["}, viewer.token, 403),
            ({"Origin": "null"}, viewer.token, 403),
            ({"Origin": f"http://127.0.0.1:{viewer.port + 1}"}, viewer.token, 403),
            ({"Sec-Fetch-Site": "same-site", "Cookie": cookie}, "", 403),
            ({"Sec-Fetch-Site": "cross-site"}, viewer.token, 403),
            ({"Cookie": f"a,b=1; {cookie}"}, "", 200),
            ({"Cookie": f'"; \t=;{cookie}; =;'}, "", 200),
        )
    )
    path = random.choice(("/api/run", "/api/state", "/js/main.js"))
    status, body = viewer.get(f"{path}?token={quote(token)}" if token else path, headers)
    told = status != 200 and (viewer.token.encode() in body or b'"ranks"' in body)
    return (
        f"{headers} {token!r}",
        f"answered {status}" if status != wanted else "told too much" if told else "",
    )


def _traversal(viewer: Viewer, random: Random) -> tuple[str, str]:
    climb = random.choice(("../", "..%2f", "%2e%2e/", "..\\", "....//", "%252e%252e/", "/", "%00/"))
    path = (
        "/"
        + random.choice(("", "js/", "api/"))
        + climb * random.randrange(1, 9)
        + random.choice(
            ("etc/passwd", "server.py", "run/.rankscope/store.json", "proc/self/environ", "index.html%00.js")
        )
    )
    status = _status(
        viewer.send(f"GET {path}?token={viewer.token} HTTP/1.1\r\nHost: {viewer.host}\r\n\r\n".encode())
    )
    return path, "" if status in (0, 400, 404) else f"answered {status}"


def _harmful_sql(viewer: Viewer, random: Random) -> tuple[str, str]:
    wrong = []
    for sql in random.sample(HARMFUL, 8):
        status, answer = viewer.ask("query", sql=sql.format(store=viewer.store))
        if status != 400 or not answer["error"]:
            wrong.append(f"{sql}: {status} {answer}")
    return "8 statements", "; ".join(wrong)


def _endless_sql(viewer: Viewer, random: Random) -> tuple[str, str]:
    """The client leaves in the middle; the next query is answered, so the first has ended."""
    sql = random.choice(_ENDLESS)
    with viewer.connect() as client:
        path = f"/api/query?token={viewer.token}&sql={quote(sql)}"
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: {viewer.host}\r\n\r\n".encode())
        time.sleep(random.uniform(0, 1.5))
        if viewer.ask("tracks", rank=0)[0] != 200:
            return sql, "the page was not answered meanwhile"
    began = time.monotonic()
    status, answer = viewer.ask("query", sql="SELECT count(*) FROM segments")
    if status != 200 or answer["rows"] != [[2]]:
        return sql, f"the next query: {status} {answer}"
    return sql, "the query went on" if time.monotonic() - began > 25 else ""


def _large_sql(viewer: Viewer, random: Random) -> tuple[str, str]:
    sql = random.choice(_LARGE)
    status, answer = viewer.ask("query", sql=sql)
    wrong = status not in (200, 400) or (status == 200 and len(answer["rows"]) > 1000)
    return sql, f"{status} {str(answer)[:200]}" if wrong else ""


def _leaving(viewer: Viewer, random: Random) -> tuple[str, str]:
    """Clients that leave while they are answered."""
    for _ in range(random.randrange(5, 30)):
        with viewer.connect() as client:
            path = random.choice(
                (
                    "/api/findings",
                    "/api/report?name=kernels",
                    "/js/main.js",
                    "/api/overview?begin=0&end=9999999",
                )
            )
            path += f"{'&' if '?' in path else '?'}token={viewer.token}"
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: {viewer.host}\r\n\r\n".encode())
            if random.random() < 0.5:
                client.recv(random.randrange(1, 1000))
    return "while they are answered", ""


KINDS: dict[str, Abuse] = {
    "malformed request line": _request_line,
    "malformed header": _header,
    "method": _method,
    "body": _body,
    "half-open requests": _half_open,
    "slow client": _slow,
    "500 connections": _flood,
    "hostile parameters of every route": _parameters,
    "wrong token, host, origin, cookie": _stranger,
    "path traversal": _traversal,
    "SQL that writes, reads files, loads": _harmful_sql,
    "SQL without end, client leaves": _endless_sql,
    "SQL of millions of rows": _large_sql,
    "client leaves": _leaving,
}
DAMAGE = "run deleted or damaged while open"


def trials(count: int, random: Random) -> Iterator[Outcome]:
    kinds = [*KINDS, DAMAGE]
    with tempfile.TemporaryDirectory(prefix="rankscope-abuse-") as folder, running(Path(folder)) as viewer:
        viewer.ask("query", sql="SELECT 1")
        viewer.ask("overview", begin=0, end=1000, width=8)
        store = _contents(viewer.store)
        for number in range(count):
            kind = kinds[number % len(kinds)]
            seed = random.randrange(10**9)
            if kind == DAMAGE:
                yield _damaged(Random(seed), seed)
                continue
            try:
                what, wrong = KINDS[kind](viewer, Random(seed))
            except (OSError, http.client.HTTPException, ValueError) as error:
                what, wrong = "", f"{type(error).__name__}: {error}"
            yield Outcome(kind, f"seed {seed}: {what[:200]}", wrong or _harm(viewer, store))


def _harm(viewer: Viewer, store: dict[str, str]) -> str:
    """What the trial has done to the server and the store."""
    try:
        if viewer.ask("tracks", rank=1)[0] != 200:
            return "a good client is not answered"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"a good client is not answered: {error}"
    if viewer.memory_bytes() > _MOST_MEMORY:
        return f"the server holds {viewer.memory_bytes() >> 20} MiB"
    if _contents(viewer.store) != store:
        return "the store has changed"
    return _printed(viewer)


def _printed(viewer: Viewer) -> str:
    viewer.errors.flush()
    text = Path(viewer.errors.name).read_text(encoding="utf-8")
    return f"it printed {text[-500:]}" if "Traceback" in text or "Error" in text else ""


_QUESTIONS: dict[str, dict[str, Any]] = {
    "run": {},
    "tracks": {"rank": 0},
    "findings": {},
    "query": {"sql": "SELECT count(*) FROM slices"},
    "overview": {"begin": 0, "end": 1000, "width": 8},
    "state": {},
}


def _damaged(random: Random, seed: int) -> Outcome:
    """Its own server. Answers may be errors, with three parts; the server goes on."""
    with tempfile.TemporaryDirectory(prefix="rankscope-abuse-") as folder, running(Path(folder)) as viewer:
        files = sorted(path for path in viewer.store.rglob("*") if path.is_file())
        action = random.choice(("delete the run", "delete a file", "cut a file", "overwrite a file"))
        target = random.choice(files)
        if action == "delete the run":
            shutil.rmtree(viewer.store.parent)
        elif action == "delete a file":
            target.unlink()
        else:
            content = bytearray(target.read_bytes())
            content[len(content) // 2 :] = (
                b"" if action == "cut a file" else random.randbytes(len(content) // 2)
            )
            target.write_bytes(content)
        wrong = []
        for route, query in _QUESTIONS.items():
            try:
                status, answer = viewer.ask(route, **query)
            except (OSError, http.client.HTTPException, ValueError) as error:
                wrong.append(f"{route}: {type(error).__name__} {error}")
                continue
            if status not in (200, 400, 500) or (status != 200 and not answer["error"]):
                wrong.append(f"{route}: {status} {answer}")
        what = f"seed {seed}: {action}: {target.relative_to(viewer.store)}"
        return Outcome(DAMAGE, what, "; ".join(wrong) or _printed(viewer))


PART = Part("viewer", trials, many=105, few=15)
