"""The parts of reading on Dask that need no cluster; tests/integration/test_dask.py has those that do."""

from __future__ import annotations

import importlib.util
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import slice_event, write_kineto
from rankscope.cli import main
from rankscope.errors import MissingPackageError, ReadError, RemoteError, UsageError
from rankscope.jobs.scheduler import State
from rankscope.store import pool
from rankscope.store.on_dask import tasks as dask_tasks
from rankscope.store.on_dask.batch_jobs import BatchJobs
from rankscope.store.on_dask.option import DaskCluster, parse_dask
from rankscope.store.on_dask.worker_task import Memory, read_on_worker
from rankscope.store.worker import Task
from rankscope.timeline import segment
from rankscope.timeline.reading import read_trace
from rankscope.version import __version__

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("dask_jobqueue") is None, reason="needs Dask (pip install 'rankscope[cluster]')"
)
GB = 10**9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dask", "somewhere"], "--dask somewhere is not a place"),
        (["--dask", "slurm", "--dask-option", "nodes"], "--dask-option nodes has no value"),
        (["--dask", "local", "--dask-option", "nodes=2"], "is for --dask slurm and --dask pbs"),
        (["--dask-option", "nodes=2"], "--dask-option needs --dask"),
        (["--dask", "tcp://a:1", "--jobs", "2"], "--jobs cannot be used with --dask tcp://a:1"),
    ],
)
@pytest.mark.parametrize("command", ["ingest", "stats"])
def test_wrong_options_exit_2(
    command: str, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path), *words]) == 2
    assert said in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_tasks, "PACKAGES", ("no_such_package",))
    with (
        pytest.raises(MissingPackageError, match="no-such-package") as caught,
        dask_tasks.connected(DaskCluster("local"), [], 1, print),
    ):
        pass
    assert caught.value.hint == "pip install 'rankscope[cluster]'"


@pytest.mark.slow
@needs_dask
def test_a_scheduler_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_tasks, "_CONNECT_S", 0.1)
    for where in (str(tmp_path / "scheduler.json"), "tcp://127.0.0.1:1"):
        with pytest.raises(RemoteError) as caught, dask_tasks.connected(DaskCluster(where), [], 1, print):
            pass
        assert caught.value.why and caught.value.hint


def test_a_cluster_without_workers_is_waited_for_and_said_once() -> None:
    said: list[str] = []
    workers: dict[str, int] = {"tcp://a:1": 1}
    check = dask_tasks._note_without_workers(SimpleNamespace(nthreads=lambda: workers), said.append)
    check()
    assert said == []
    workers.clear()
    check()
    check()
    assert len(said) == 1 and "has no workers" in said[0]


def _batch(
    where: str, *options: str, shared: Path = Path(), needed: int = GB, tasks: int = 1024
) -> BatchJobs:
    return BatchJobs(parse_dask(where, options), shared, needed, tasks)


def _script(batch: BatchJobs) -> str:
    with batch.cluster() as cluster:
        text: str = cluster.job_script()
    return text


def _directives(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith(("#SBATCH", "#PBS"))]


SHARED_OPTIONS = {
    "name": "reading",
    "account": "phys",
    "queue": "long",
    "walltime": "2h",
    "ppn": "8",
    "filesystems": "home:eagle",
    "stdout": "logs/",
    "venv": "/opt/env",
    "modules": "cuda/12",
    "env": "A=B c",
}


@pytest.mark.slow
@needs_dask
@pytest.mark.parametrize(
    ("where", "more"),
    [
        ("slurm", {"constraint": "cpu", "directive": "--exclusive"}),
        ("pbs", {"select": "ncpus=8", "directive": "-W block=true"}),
    ],
)
def test_the_script_is_that_of_rankscope_job_and_that_for_pbs_is_not_submitted(
    tmp_path: Path, where: str, more: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no PBS here."""
    options = {**SHARED_OPTIONS, **more}
    given = [f"{key}={value}" for key, value in options.items()]
    script = _script(_batch(where, *given, "nodes=4", shared=tmp_path))
    assert main(["job", where, *(f"--{option}" for option in given), "--", "true"]) == 0
    job = capsys.readouterr().out
    assert _directives(script) == _directives(job)
    body = [line for line in job.partition("set -u")[2].partition("MASTER_ADDR")[0].splitlines() if line]
    assert {"module load cuda/12", ". /opt/env/bin/activate", "export A='B c'"} < set(body)
    assert [line for line in script.splitlines() if line in body] == ["set -u", *body]
    [worker] = [line for line in script.splitlines() if line.startswith("python -m distributed")]
    assert "--nworkers 8" in worker and "--nthreads 1" in worker and "--local-directory /tmp" in worker
    assert f"--tls-key {tmp_path}/tls-key.pem" in worker
    assert (tmp_path / "tls-key.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@needs_dask
def test_a_node_s_memory_is_asked_for_and_limits_its_processes(tmp_path: Path) -> None:
    def script(where: str, needed: int) -> str:
        return _script(_batch(where, "ppn=16", "memory=8GB", shared=tmp_path, needed=needed))

    slurm = script("slurm", 2 * GB)
    assert "#SBATCH --ntasks-per-node=4" in slurm and "#SBATCH --mem=7630M" in slurm
    assert "--nworkers 4" in slurm
    pbs = script("pbs", 2 * GB)
    assert "#PBS -l select=1:ncpus=4:mem=7630mb" in pbs
    alone = script("slurm", 20 * GB)
    assert "#SBATCH --ntasks-per-node=1" in alone


def test_no_more_nodes_than_tasks() -> None:
    assert _batch("slurm", "nodes=64", "ppn=4", tasks=10)._spec.nodes == 3


def test_an_option_that_rankscope_job_does_not_have() -> None:
    with pytest.raises(UsageError, match="--dask-option nodez is not known") as caught:
        _batch("slurm", "nodez=3")
    assert "walltime" in caught.value.why and "gpus-per-node" in caught.value.why


def test_a_scheduler_s_refusal_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dask_jobqueue")
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: Invalid account' >&2; exit 1\n")
    sbatch.chmod(0o700)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    trace = write_kineto(tmp_path / "rank-0.json", [slice_event("op", 1000.0, 5.0)])
    assert main(["ingest", str(trace), "--dask", "slurm", "--dask-option", "interface=lo"]) == 1
    said = capsys.readouterr().err
    assert "rankscope: sbatch refused the job\n  sbatch: error: Invalid account\n  " in said


def test_jobs_that_ended_are_an_error() -> None:
    batch = _batch("slurm")
    ids = {"a": SimpleNamespace(job_id="11"), "b": SimpleNamespace(job_id="12")}
    batch._cluster = SimpleNamespace(workers=ids)
    states = {"11": State("failed", True, 1), "12": State("running", False, None)}
    batch._scheduler = batch._scheduler._replace(state=states.__getitem__)
    batch.check()
    states["12"] = State("timeout", True, None)
    with pytest.raises(RemoteError, match="the Slurm jobs ended before") as caught:
        batch.check()
    assert caught.value.why == "job 11: failed, exit code 1; job 12: timeout"


def test_tasks_that_do_not_fit_wait_for_each_other() -> None:
    memory, order, inside = Memory(), [], threading.Event()
    go = threading.Event()

    def large() -> None:
        with memory.reserved(7, limit=10):
            inside.set()
            go.wait(5)
            order.append("large")

    def second() -> None:
        with memory.reserved(4, limit=10):
            order.append("does not fit beside it")

    threads = [threading.Thread(target=large), threading.Thread(target=second)]
    threads[0].start()
    inside.wait(5)
    threads[1].start()
    with memory.reserved(3, limit=10):
        order.append("fits beside it")
    go.set()
    for thread in threads:
        thread.join(5)
    assert order == ["fits beside it", "large", "does not fit beside it"]
    with memory.reserved(70, limit=10):
        pass


def test_needed_memory_grows_with_the_text(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    for path in (plain, packed):
        path.write_bytes(b"x" * 1000)
    least = pool.needed_bytes(tmp_path / "none")
    assert pool.needed_bytes(plain) - least == 500 and pool.needed_bytes(packed) - least == 6000


@pytest.fixture
def on_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a Dask worker without a memory limit."""
    distributed = pytest.importorskip("distributed")
    worker = SimpleNamespace(memory_manager=SimpleNamespace(memory_limit=None))
    monkeypatch.setattr(distributed, "get_worker", lambda: worker)


@pytest.mark.usefixtures("on_worker")
def test_only_what_another_worker_may_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write_kineto(tmp_path / "rank-0.json", [slice_event("op", 1000.0, 5.0)])
    broken = tmp_path / "rank-1.json"
    broken.write_text("no trace")
    result = read_on_worker(Task(read_trace, str(trace), str(tmp_path / "result"), 1), __version__, {})
    assert isinstance(result, dict) and result["events"] == 1
    failed = read_on_worker(Task(read_trace, str(broken), str(tmp_path / "none"), 1), __version__, {})
    assert isinstance(failed, ReadError)

    def stale(*_: Any) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(segment, "build_segment", stale)
    with pytest.raises(ReadError):
        read_on_worker(Task(read_trace, str(trace), str(tmp_path / "other"), 1), __version__, {})


@pytest.mark.usefixtures("on_worker")
def test_a_worker_that_cannot_do_any_task_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    task = Task(read_trace, "/run/rank-0.json", str(tmp_path / "not shared" / "result"), 1)
    with pytest.raises(RemoteError, match="the Dask worker on node7 does not see"):
        read_on_worker(task, __version__, {})
    with pytest.raises(RemoteError, match=f"has rankscope {__version__}, and this is 0.0.1"):
        read_on_worker(task, "0.0.1", {})
