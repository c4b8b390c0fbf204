"""A second, unprivileged user on the machine: what the first one keeps and serves is not for them.

Needs root, to be two users; elsewhere nothing is tried.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from conftest import ROOT
from faults.outcome import Outcome, Part
from faults.viewer_abuse import Viewer, running
from rankscope.remote.tunnel import free_port

STRANGER = 65534
"""nobody, on every Linux."""


def _as_stranger(*words: str) -> str:
    """What a command of another user prints on stdout: nothing when it is refused."""
    done = subprocess.run(
        words,
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        capture_output=True,
        cwd="/",
        timeout=60,
        check=False,
    )
    return done.stdout.decode(errors="replace")


def _refused(printed: str) -> str:
    return f"another user got {printed[:300]!r}" if printed else ""


def _read_files(viewer: Viewer, random: Random) -> tuple[str, str]:
    path = random.choice([path for path in viewer.store.rglob("*") if path.is_file()])
    return f"read {path.name}", _refused(_as_stranger("head", "-c", "20", str(path)))


def _list_folders(viewer: Viewer, random: Random) -> tuple[str, str]:
    folder = random.choice([path for path in viewer.store.rglob("*") if path.is_dir()] + [viewer.store])
    return f"list {folder.name}", _refused(_as_stranger("ls", str(folder)))


def _write_files(viewer: Viewer, random: Random) -> tuple[str, str]:
    path = viewer.store / random.choice(("store.json", "new", "rank=00000/new"))
    before = path.stat() if path.exists() else None
    _as_stranger("touch", str(path))
    after = path.stat() if path.exists() else None
    return f"write {path.name}", "" if after == before else "another user could"


def _use_the_port(viewer: Viewer, random: Random) -> tuple[str, str]:
    path = random.choice(
        ("/", "/api/run", "/api/query?sql=SELECT+1", "/js/main.js", "/api/state?token=guess")
    )
    printed = _get(viewer.port, path, viewer.host)
    told = viewer.token in printed or not printed.startswith("HTTP/1.1 401")
    return f"GET {path}", f"another user got {printed[:300]!r}" if told else ""


def _get(port: int, path: str, host: str) -> str:
    request = f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n"
    return _as_stranger("bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{request}' >&3; cat <&3")


def _look_at_the_process(viewer: Viewer, random: Random) -> tuple[str, str]:
    """The token is in no command line or environment that others can read."""
    name, words = random.choice(
        (("cmdline", ["cat"]), ("environ", ["cat"]), ("fd", ["ls", "-l"]), ("maps", ["cat"]), ("cwd", ["ls"]))
    )
    printed = _as_stranger(*words, f"/proc/{viewer.process.pid}/{name}")
    told = viewer.token in printed or (name != "cmdline" and printed.strip())
    return f"/proc/PID/{name}", f"another user got {printed[:300]!r}" if told else ""


def _perfetto(viewer: Viewer, random: Random) -> tuple[str, str]:
    """`view --perfetto` keeps a trace in the shared temporary folder, and serves it under a path that is not told."""
    with tempfile.TemporaryDirectory(prefix="shared-") as shared:
        Path(shared).chmod(0o1777)
        port = free_port()
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": shared}
        words = [
            "view",
            str(viewer.store.parent),
            "--perfetto",
            "--no-open",
            "-q",
            "--port",
            str(port),
            "--ranks",
            "0",
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "rankscope", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        try:
            assert process.stdout
            url = process.stdout.readline()
            found = _as_stranger("find", shared, "-type", "f") + _as_stranger("sh", "-c", f"cat {shared}/*/*")
            answers = [
                _get(port, path, f"127.0.0.1:{port}") for path in ("/", "/rankscope.perfetto-trace", "/x/../")
            ]
        finally:
            process.terminate()
            process.communicate(timeout=60)
        refused = all(answer.startswith("HTTP/1.1 404") for answer in answers)
        return "files and port", _refused(found) or (
            "" if refused and "url=" in url else f"answers: {answers}"
        )


def _links_in_the_way(viewer: Viewer, random: Random) -> tuple[str, str]:
    """Links with likely names in a shared folder, which lead to a file of the first user's."""
    with tempfile.TemporaryDirectory(prefix="shared-") as name:
        shared, precious = Path(name), Path(name) / "precious"
        shared.chmod(0o1777)
        precious.write_text("precious")
        trace = shared / "rank-0.json"
        trace.write_text('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]}')
        command = random.choice(
            (
                ["stats", str(trace)],
                ["report", str(trace), "-o", str(shared / "out.html")],
                ["export", str(trace), "-t", "chrome", "-o", str(shared / "out.json")],
                ["report", str(trace), "--chart", "breakdown", "-o", str(shared / "out.svg")],
            )
        )
        for link in (".rankscope", "out.html", "out.json", "out.svg", ".out.html.tmp", ".out.json.tmp"):
            _as_stranger("ln", "-s", str(precious), str(shared / link))
        done = subprocess.run(
            [sys.executable, "-m", "rankscope", *command, "-q"],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=False,
        )  # fmt: skip
        if precious.read_text() != "precious":
            return command[0], "the file behind the link was overwritten"
        return command[0], "a traceback" if "Traceback" in done.stderr else ""


KINDS: dict[str, Callable[[Viewer, Random], tuple[str, str]]] = {
    "reads files of a store": _read_files,
    "lists folders of a store": _list_folders,
    "writes into a store": _write_files,
    "uses the viewer's port": _use_the_port,
    "looks at the viewer's process": _look_at_the_process,
    "reads what --perfetto serves": _perfetto,
    "puts links in the way": _links_in_the_way,
}


def trials(count: int, random: Random) -> Iterator[Outcome]:
    if os.geteuid() != 0:
        yield from (Outcome("not tried: needs root, to be two users", "") for _ in range(count))
        return
    # A folder that others can enter, as home folders of clusters often are: the store must close itself.
    with tempfile.TemporaryDirectory(prefix="home-") as home:
        Path(home).chmod(0o755)
        with running(Path(home)) as viewer:
            viewer.ask("query", sql="SELECT 1")
            viewer.ask("overview", begin=0, end=1000, width=8)
            kinds = list(KINDS)
            for number in range(count):
                kind, seed = kinds[number % len(kinds)], random.randrange(10**9)
                what, wrong = KINDS[kind](viewer, Random(seed))
                yield Outcome(kind, f"seed {seed}: {what}", wrong)


PART = Part("second user", trials, many=49, few=7)
