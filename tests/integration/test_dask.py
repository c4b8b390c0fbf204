"""Reading on Dask gives the store of reading without, whatever dies on the way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import DATA
from integration.jobs import PYTHON, environment, needs, run
from rankscope.store.index import Index
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest

pytest.importorskip("dask_jobqueue", reason="needs Dask (pip install 'rankscope[cluster]')")
pytestmark = pytest.mark.slow

INGEST = [PYTHON, "-m", "rankscope", "ingest"]
RANKS = 4
PATIENCE_S = 60


class Traces:
    """Four ranks, and a folder by which the test holds the workers that read them."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.store = self.run / ".rankscope"
        self._hold = folder / "hold"
        for made in (self.run, self._hold):
            made.mkdir()
        for rank in range(RANKS):
            shutil.copy2(DATA / "seqpar-gloo4" / f"rank-{rank}-of-4.json.gz", self.run)

    def environment(self, base: dict[str, str] | None = None, host: str = "") -> dict[str, str]:
        hook = Path(__file__).with_name("dask_hold.py")
        return {
            **(base or environment()),
            "DASK_DISTRIBUTED__WORKER__PRELOAD": f"['{hook}']",
            "DASK_HOLD": str(self._hold),
            "DASK_HOST_NAME": host,
        }

    def hold(self, rank: int) -> None:
        self._file(rank).touch()

    def let_go(self, rank: int) -> None:
        self._file(rank).unlink()

    def wait_until_held(self, rank: int, finished: int = 0) -> int:
        """Wait until a worker holds this rank, and so many others are read; returns the worker's process id."""
        file = self._file(rank)
        held = file.with_name(f"{file.name}.held")
        _wait(lambda: held.exists() and bool(held.read_text()))
        _wait(lambda: len(list(self.store.glob("incoming-*/*/segment.json"))) >= finished)
        return int(held.read_text())

    def read_ranks(self) -> list[int]:
        return [entry.rank for entry in Index.load(self.store).segments]

    def _file(self, rank: int) -> Path:
        return self._hold / f"rank-{rank}-of-4.json.gz"


@pytest.fixture
def traces(tmp_path: Path) -> Traces:
    return Traces(tmp_path)


@pytest.fixture
def expected(tmp_path: Path, traces: Traces) -> dict[str, bytes]:
    """The files of the store that is written without Dask."""
    return contents(ingest([traces.run], Options(cache=tmp_path / "cache")).store)


def contents(store: Path) -> dict[str, bytes]:
    """Every file of a store. The name of a segment's folder is new each time, also in the list of segments."""
    index = Index.load(store)
    builds = {entry.build: f"BUILD-{entry.rank}-{entry.segment}" for entry in index.segments}
    found = {}
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        parts = [builds.get(part, part) for part in path.relative_to(store).parts]
        found["/".join(parts)] = path.read_bytes()
    listed = found.pop("store.json").decode().partition("segments")[2]
    for build, name in builds.items():
        listed = listed.replace(build, name)
    return {**found, "store.json": listed.encode()}


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@contextmanager
def started(words: list[str], traces: Traces, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, as a terminal starts it."""
    process = subprocess.Popen(
        words, cwd=traces.run.parent, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@contextmanager
def cluster(traces: Traces, host: str = "") -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A scheduler with two workers, as a user starts them; and the scheduler's file."""
    file = traces.run.parent / "scheduler.json"
    env = {**traces.environment(host=host), "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "1.0"}
    words = ["dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    with started([*words, "--scheduler-file", str(file)], traces, env) as scheduler:
        _wait(file.is_file)
        worker = ["dask", "worker", "--scheduler-file", str(file), "--nworkers", "2", "--nthreads", "1"]
        with started([*worker, "--no-dashboard", "--local-directory", str(traces.run.parent)], traces, env):
            yield scheduler, file


@pytest.mark.thorough
def test_the_same_store_with_two_local_workers(traces: Traces, expected: dict[str, bytes]) -> None:
    done = run([*INGEST, str(traces.run), "--dask", "local", "--jobs", "2"], traces.run)
    assert "Dask dashboard: http://127.0.0.1:" in done.stderr and "Read 4 files" in done.stderr
    assert contents(traces.store) == expected


@pytest.mark.thorough
def test_a_worker_killed_in_the_middle(traces: Traces, expected: dict[str, bytes]) -> None:
    traces.hold(1)
    words = [*INGEST, str(traces.run), "--dask", "local", "--jobs", "2"]
    with started(words, traces, traces.environment()) as command:
        worker = traces.wait_until_held(1)
        os.kill(worker, signal.SIGKILL)
        traces.let_go(1)
        _, said = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, said
    assert "Read 4 files" in said and "Traceback" not in said
    assert contents(traces.store) == expected


@pytest.mark.thorough
def test_ctrl_c_and_again(traces: Traces, expected: dict[str, bytes]) -> None:
    traces.hold(1)
    words = [*INGEST, str(traces.run), "--dask", "local", "--jobs", "2"]
    with started(words, traces, traces.environment()) as command:
        traces.wait_until_held(1, finished=3)
        os.killpg(command.pid, signal.SIGINT)
        _, said = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 128 + signal.SIGINT and "what was read is kept" in said
    assert "Traceback" not in said
    kept = traces.read_ranks()
    assert kept and set(kept) <= {0, 2, 3} and not list(traces.store.glob("incoming-*"))
    traces.let_go(1)
    again = run(words, traces.run)
    assert f"Read {RANKS - len(kept)} file" in again.stderr
    assert contents(traces.store) == expected


@pytest.mark.thorough
def test_a_scheduler_that_dies_and_again_without_dask(traces: Traces, expected: dict[str, bytes]) -> None:
    traces.hold(2)
    with cluster(traces) as (scheduler, file):
        words = [*INGEST, str(traces.run), "--dask", str(file)]
        with started(words, traces, traces.environment()) as command:
            traces.wait_until_held(2, finished=3)
            scheduler.kill()
            _, said = command.communicate(timeout=PATIENCE_S)
        assert command.returncode == 1, said
        assert "does not answer any more\n  " in said and "What was read is kept" in said
        assert "Traceback" not in said
        kept = traces.read_ranks()
        assert kept and set(kept) <= {0, 1, 3}
        traces.let_go(2)
    again = run([*INGEST, str(traces.run)], traces.run)
    assert f"Read {RANKS - len(kept)} file" in again.stderr
    assert contents(traces.store) == expected


@pytest.mark.thorough
def test_workers_of_another_host_are_not_judged_from_here(traces: Traces, expected: dict[str, bytes]) -> None:
    """The command is killed; its task goes on over there. What it writes is neither removed nor listed."""

    def attempts() -> list[Path]:
        return list(traces.store.glob("incoming-*/another-host.*"))

    traces.hold(0)
    with cluster(traces, host="another-host") as (_, file):
        with started(
            [*INGEST, str(traces.run), "--dask", str(file)], traces, traces.environment()
        ) as command:
            traces.wait_until_held(0, finished=3)
            os.killpg(command.pid, signal.SIGKILL)
        _wait(lambda: len(attempts()) == 1)
        [attempt] = attempts()
        run([*INGEST, str(traces.run)], traces.run)
        assert attempt.is_dir()
        assert traces.read_ranks() == [0, 1, 2, 3]
        traces.let_go(0)
        _wait(lambda: not attempt.exists())
    shutil.rmtree(attempt.parent)
    assert contents(traces.store) == expected


NODES = [f"--dask-option={option}" for option in ("nodes=2", "ppn=1", "interface=lo", "walltime=5m")]


def queued(env: dict[str, str]) -> list[str]:
    return subprocess.run(
        ["squeue", "--noheader"], env=env, capture_output=True, text=True, check=True
    ).stdout.splitlines()


@needs("sbatch", "slurm-wlm slurm-wlm-torque munge")
@pytest.mark.thorough
def test_two_slurm_nodes_and_a_worker_killed(
    traces: Traces, expected: dict[str, bytes], slurm: dict[str, str]
) -> None:
    traces.hold(1)
    words = [*INGEST, str(traces.run), "--dask", "slurm", *NODES]
    with started(words, traces, traces.environment(slurm)) as command:
        worker = traces.wait_until_held(1)
        assert len(queued(slurm)) == 2
        os.kill(worker, signal.SIGKILL)
        traces.let_go(1)
        _, said = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, said
    assert "Submitted 2 Slurm jobs (1 process on a node): " in said and "Read 4 files" in said
    assert contents(traces.store) == expected
    _wait(lambda: not queued(slurm))


@pytest.mark.thorough
@needs("sbatch", "slurm-wlm slurm-wlm-torque munge")
def test_slurm_and_the_command_killed_with_its_scheduler_and_again(
    tmp_path: Path, traces: Traces, expected: dict[str, bytes], slurm: dict[str, str]
) -> None:
    traces.hold(1)
    words = [*INGEST, str(traces.run), "--dask", "slurm", *NODES]
    with started(words, traces, traces.environment(slurm)) as command:
        traces.wait_until_held(1, finished=3)
        os.killpg(command.pid, signal.SIGKILL)
    traces.let_go(1)
    _wait(lambda: not queued(slurm))  # workers without a scheduler end by themselves
    run(words, traces.run.parent, env=traces.environment(slurm))
    assert contents(traces.store) == expected
    stats = [PYTHON, "-m", "rankscope", "stats", str(traces.run), "--format", "json"]
    without = run([*stats, "--cache", str(tmp_path / "cache")], tmp_path)
    assert run(stats, tmp_path).stdout == without.stdout
