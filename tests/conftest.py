"""Shared by all tests: recorded files, small traces written by a test, and runs opened from them."""

from __future__ import annotations

import fcntl
import gc
import json
import lzma
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: two tests run at a time on two cores

from rankscope.store.index import store_folder
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

# Under nohup, or started in the background by a script, these are ignored, also in the jobs that tests signal.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

EXAMPLES_PCT = int(os.environ.get("RANKSCOPE_TEST_EXAMPLES", "25"))


def examples(most: int) -> int:
    """How many random examples are tried of those that make test-all tries."""
    return most * EXAMPLES_PCT // 100


# On a busy machine an example can take long; that is no failure.
settings.register_profile(
    "rankscope", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(100)
)
settings.load_profile("rankscope")

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
DEMO = ROOT / "src" / "rankscope" / "demo"
"""The runs of `rankscope demo`, and of the tutorial."""
SHARED = ROOT.parent / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--retried-at-most",
        type=int,
        metavar="N",
        help="with --last-failed: name the tests that are tried again, and fail where these are more than N",
    )
    parser.addoption("--shard", metavar="I/N", help="every Nth file of tests, from the Ith on")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: set[str] = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        slow = item.get_closest_marker("slow")
        if slow and test in seen and not slow.kwargs.get("every_variation"):
            item.add_marker("thorough")
        seen.add(test)
        if item.get_closest_marker("thorough"):
            item.add_marker("slow")
    if shard := config.getoption("--shard"):
        number, count = map(int, shard.split("/"))
        files = sorted({item.path for item in items if item.get_closest_marker("slow")})[number - 1 :: count]
        items[:] = [item for item in items if item.path in files]
    items.sort(key=_order(items))
    gc.freeze()  # the garbage collector need not go through five thousand tests again and again


def _order(items: list[pytest.Item]) -> Callable[[pytest.Item], tuple[int, float]]:
    """Those that start jobs first, beside lint; then files that wait for a browser among those that compute; the quick
    ones last: at the end no worker is left alone with a long file."""

    def waits(item: pytest.Item) -> bool:
        return item.nodeid.startswith(("tests/viewer/", "tests/browser/"))

    position: dict[Path, float] = {}
    for waiting in (True, False):
        paths = dict.fromkeys(
            item.path for item in items if "slow" in item.keywords and waits(item) == waiting
        )
        position |= {path: index / len(paths) for index, path in enumerate(paths)}

    def key(item: pytest.Item) -> tuple[int, float]:
        if item.nodeid.startswith("tests/integration/"):
            return 0, 0
        return (1, position[item.path]) if "slow" in item.keywords else (2, 0)

    return key


def pytest_collection_finish(session: pytest.Session) -> None:
    at_most = session.config.getoption("--retried-at-most")
    if at_most is not None and session.items:
        names = "".join(f"\n  {item.nodeid}" for item in session.items)
        print(
            f"\n{len(session.items)} failed beside others, and at most {at_most} are tried again alone:{names}"
        )
        if len(session.items) > at_most:
            pytest.exit(f"more than {at_most} tests failed: none is tried again", returncode=1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The parent of public/, the traces of other projects, which are not part of the repository."""
    if not (SHARED / "public").is_dir():
        pytest.skip(
            "needs other projects' traces in ../shared/data/public, which are not part of the repository"
        )
    return SHARED


@pytest.fixture(scope="session")
def dataset(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The path of a recorded file or folder by its name below tests/data, or of "demo/…" or "public/…"; .xz is
    unpacked."""
    unpacked = tmp_path_factory.mktemp("data")

    def find(name: str) -> Path:
        if name.startswith("public/"):
            folder: Path = request.getfixturevalue("shared")
            return folder / name
        if name.startswith("demo/"):
            return DEMO.parent / name
        source = DATA / name
        packed = source.rglob("*.xz") if source.exists() else [source.with_name(f"{source.name}.xz")]
        found = source
        for file in packed:
            found = unpacked / name
            target = unpacked / file.relative_to(DATA).with_suffix("")
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(lzma.decompress(file.read_bytes()))
                os.utime(
                    target, (0, 0)
                )  # no file is newer: a csv is read instead of the report it was made from
        return found

    return find


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time holds the lock of this name."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of pytest-xdist share."""
    ours = tmp_path_factory.getbasetemp()
    return ours.parent if "PYTEST_XDIST_WORKER" in os.environ else ours


@pytest.fixture(scope="session")
def open_real(session_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Run]:
    """Open a recorded trace or folder of traces. The first process that needs it reads it; each copies the store."""
    cache = tmp_path_factory.mktemp("stores")
    shared = session_folder / "shared-stores"
    shared.mkdir(exist_ok=True)
    opened: dict[Path, Run] = {}

    def open_run(path: Path) -> Run:
        if path not in opened:
            store = store_folder([path], None, shared)
            with locked(shared / f"{store.name}.lock"):
                ingest([path], Options(cache=shared))
            shutil.copytree(store, cache / store.name)
            opened[path] = Run(ingest([path], Options(cache=cache)))
        return opened[path]

    return open_run


@pytest.fixture(scope="module")
def without_workers() -> Iterator[None]:
    """Every file is read in this process: starting a worker takes a small one's CPU time many times over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankscope.store.pool.need_no_worker", lambda paths: True)
        yield


@pytest.fixture(
    scope="module"
)  # playwright keeps an event loop running, which would disturb tests of other modules
def chromium() -> Iterator[Any]:
    """Chromium, installed by tests/install-packages.sh and driven by playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install 'rankscope[dev]')")
    from viewer_server import browser_program

    program = browser_program()
    if program is None:
        pytest.skip("needs chromium (tests/install-packages.sh)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def accessibility_faults() -> Callable[[Any], list[str]]:
    """The serious and critical findings of axe-core on a page of playwright; npm installs axe-core into .venv."""
    script = ROOT / ".venv" / "js" / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        npm = shutil.which("npm")
        install = ["install", "--silent", "--no-audit", "--no-fund", "--prefix", str(ROOT / ".venv" / "js")]
        if npm is None or subprocess.run([npm, *install, "axe-core@4"], check=False).returncode:
            pytest.skip("needs axe-core (npm)")
    axe = script.read_text(encoding="utf-8")

    def faults(page: Any) -> list[str]:
        page.evaluate(axe)
        found = page.evaluate("axe.run().then(result => result.violations)")
        return [
            f"{one['id']} ({one['impact']}): {one['help']}: {one['nodes'][0]['html'][:120]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    return faults


def slice_event(name: str, ts: float, dur: float, *, cat: str = "cpu_op", **fields: Any) -> dict[str, Any]:
    """A complete event; times in µs."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **fields}


def kernel_event(
    name: str, ts: float, dur: float, correlation: int = 0, stream: int = 7, **args: Any
) -> dict[str, Any]:
    """A kernel on GPU 0; times in µs."""
    more = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return slice_event(name, ts, dur, cat="kernel", pid=0, tid=stream, args=more)


def kineto_text(events: list[Any], **header: Any) -> str:
    """A trace in torch's layout: header fields first, each event over several lines, traceName last."""
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items())
    return f'{{\n{head}  "traceEvents": [\n{",".join(map(_event_text, events))}\n  ],\n  "traceName": "x"\n}}'


def _event_text(event: Any) -> str:
    if isinstance(event, str):  # an event that the test has damaged
        return event
    fields = dict(event)
    args = fields.pop("args", None)
    text = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
    more = f',\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}' if args is not None else ""
    return f"\n  {{\n    {text}{more}\n  }}"


def write_kineto(path: Path, events: list[Any], **header: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(kineto_text(events, **header), encoding="utf-8", errors="surrogatepass")
    return path


def open_trace(path: Path) -> Run:
    """Open a trace that the test wrote. Its store is created beside it; files in DATA need `open_real`."""
    assert not path.is_relative_to(DATA), "use open_real: nothing may be written below tests/data"
    return Run(ingest([path]))
