"""Ray's workers and actors as ranks: with a stand-in for Ray, and in thorough tests with Ray itself."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from integration.jobs import environment, needs_torch, run
from rankscope.capture.plan import Plan
from rankscope.capture.rank import Identity
from rankscope.capture.run_folder import open_run, rank_stem
from rankscope.inapp import engine
from rankscope.integrations import environment as asked
from rankscope.integrations import ray
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

ROOT = Path(__file__).parents[2]


class Machine:
    """A machine with workers. One that does not share the disk of the first has that of its own."""

    def __init__(self, disk: Path, root: Path | None) -> None:
        self.disk, self.root = disk, root

    def here(self, value: Any) -> Any:
        if isinstance(value, Plan) and self.root is not None:
            return value._replace(output=str(self.root / str(value.output).lstrip("/")))
        return value


class Worker:
    """Of Ray Train: calls functions in its process, which here is that of the test."""

    def __init__(self, machine: Machine, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine, self.monkeypatch = machine, monkeypatch
        self.engine: Any = None
        self.distributed_context = SimpleNamespace(
            world_rank=rank, world_size=3, local_rank=0, local_world_size=1, node_rank=rank
        )

    def execute_async(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.monkeypatch.context() as patch:
            patch.setattr(asked, "capture", self.capture)
            patch.setattr(engine, "_engine", self.engine)
            patch.setattr("tempfile.gettempdir", lambda: str(self.machine.disk))
            return function(*map(self.machine.here, args), **kwargs)

    def capture(self, plan: Plan, identity: Identity) -> None:
        folder, _ = open_run(Path(str(plan.output)), {"job": plan.job}, force=False)
        stem = rank_stem(identity.rank)
        manifest = {"rank": identity.rank}
        self.engine = SimpleNamespace(files=SimpleNamespace(folder=folder, manifest=manifest))
        engine._engine = self.engine

        def finish() -> None:
            (folder / "telemetry").mkdir(exist_ok=True)
            (folder / f"{stem}.pt.trace.json").write_bytes(b"trace of " + stem.encode())
            (folder / "telemetry" / f"{stem}.ring").write_bytes(b"")
            (folder / f"{stem}.rankscope.json").write_text(json.dumps(manifest))

        self.engine.finish = finish


@pytest.fixture
def ray_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("ray")
    module.get = lambda value, timeout=None: value  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setattr(ray, "_PART_BYTES", 7)
    return module


def test_files_of_all_machines_come_into_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_module: ModuleType
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKSCOPE", "profile --steps 4:6 -o runs/a")
    shared = Machine(tmp_path, None)
    distant = [Machine(tmp_path / f"disk{number}", tmp_path / f"root{number}") for number in range(2)]
    workers = [Worker(machine, rank, monkeypatch) for rank, machine in enumerate([shared, *distant])]
    group = SimpleNamespace(get_workers=lambda: workers)
    callback = ray.Callback()
    callback.after_worker_group_start(group)
    assert [worker.engine.files.folder.is_relative_to(tmp_path / "runs") for worker in workers] == [
        True,
        False,
        False,
    ]
    callback.before_worker_group_shutdown(group)
    folder = tmp_path / "runs" / "a"
    for rank in range(3):
        stem = rank_stem(rank)
        assert (folder / f"{stem}.pt.trace.json").read_bytes() == b"trace of " + stem.encode()
        assert (folder / "telemetry" / f"{stem}.ring").is_file()
        assert json.loads((folder / f"{stem}.rankscope.json").read_text()) == {"rank": rank, "restart": 0}
    assert not [path for path in folder.rglob("*") if path.name.endswith(".part")]
    assert not [path for machine in distant for path in machine.disk.rglob("rank-*")], "moved, not copied"


def test_a_second_attempt_and_a_worker_that_died(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ray_module: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    callback = ray.Callback("profile -o a")
    for attempt in range(2):
        workers = [Worker(Machine(tmp_path, None), rank, monkeypatch) for rank in range(2)]
        group = SimpleNamespace(get_workers=lambda workers=workers: workers)
        callback.after_worker_group_start(group)
        assert workers[1].engine.files.manifest["restart"] == attempt
        workers[0].execute_async = None  # type: ignore[assignment,method-assign]
        callback.before_worker_group_shutdown(group)
        assert "rankscope: Ray: " in capsys.readouterr().err
    assert (tmp_path / "a" / "rank-00001.pt.trace.json").exists()
    assert not (tmp_path / "a-2").exists()


def test_nothing_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rankscope profile` in front of the job goes before the callback; words that mean nothing are one line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKSCOPE", "profil")
    callback = ray.Callback()
    callback.after_worker_group_start(None)
    callback.before_worker_group_shutdown(None)
    assert not [*tmp_path.iterdir()]


ROLES = [{}, {0: "Rollout", 1: "Rollout", 2: "Trainer", 3: "Trainer"}]


@pytest.mark.thorough
@needs_torch
@pytest.mark.parametrize("number", [0, 1], ids=["Ray Train", "actors"])
def test_page(tmp_path: Path, number: int) -> None:
    """The two scripts of the page, and their commands."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: tests/requirements-thorough.txt")
    text = (ROOT / "docs" / "frameworks" / "ray.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
    script = [code for language, code in blocks if language == "python"][number]
    lines = [code for language, code in blocks if not language][number].splitlines()
    # A machine with little to spare needs more than Ray's half minute to start the workers.
    patient = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"}
    for line in lines:
        words = shlex.split(line)
        variables = dict(word.split("=", 1) for word in words if re.match("[A-Z_]+=", word))
        command = words[len(variables) :]
        if command[0] == "python":
            (tmp_path / command[1]).write_text(script)
        done = run(command, tmp_path, env=environment(**variables, **patient), timeout_s=500)
        assert "not captured" not in done.stderr and "capture is off" not in done.stderr
    opened = Run(ingest([tmp_path / "runs" / "a"]))
    assert opened.roles == ROLES[number]
    rows = opened.rows("SELECT DISTINCT rank, step FROM steps ORDER BY ALL")
    ranks = len(ROLES[number]) or 2
    assert [*map(tuple, rows)] == [(rank, step) for rank in range(ranks) for step in (4, 5, 6)]
