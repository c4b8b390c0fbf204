"""Ray: the workers of Ray Train, and actors, as the ranks of one run.

    RAY_TRAIN_CALLBACKS=rankscope.ray.Callback RANKSCOPE="profile --steps 20:24" python train.py
    ray.init(runtime_env={"worker_process_setup_hook": "rankscope.ray.on_worker_start"})

The first is for Ray Train v2, the second for actors that join a process group. Any other actor calls
rankscope.ray.start("profile …").
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankscope.capture.job_name import default_folder, name_run
from rankscope.capture.plan import Plan
from rankscope.capture.rank import RAY_TRAIN, UNNUMBERED, Identity, detect
from rankscope.capture.rank_files import ROLE_VARIABLE, run_manifest
from rankscope.capture.run_folder import folder_of, open_run, rank_stem, remove_if_empty
from rankscope.inapp.import_hooks import after_import, when_joined
from rankscope.integrations import environment

_PART_BYTES = 64 << 20
"""What one message between machines carries of a file."""
_END_S = 900.0
"""How long a worker may take to write its last trace."""
_CALLBACKS = "ray.train.v2._internal.execution.callback"


class Callback(environment.framework_class((_CALLBACKS,), "WorkerGroupCallback")):  # type: ignore[misc]
    """For RAY_TRAIN_CALLBACKS or RunConfig(callbacks=[…]): captures every worker as the words ask.

    Made by the program that calls fit(), which names the run's folder; its other methods run in Ray Train's controller,
    on the same machine. Workers that see this folder write to it. The files of others are brought there when the
    workers end. Whatever fails is one line, and the training goes on.
    """

    def __init__(self, words: str = "watch") -> None:
        self._plan = environment.asked_plan(words)
        self._role = os.environ.get(ROLE_VARIABLE, "")
        self._starts = 0
        if self._plan is not None:
            plan = self._plan
            folder, job = name_run(os.environ, detect(os.environ), plan.command, plan.output, plan.job)
            self._plan = plan._replace(output=str(folder), job=job)

    def after_worker_group_start(self, worker_group: Any) -> None:
        if self._plan is not None:
            _safely(self._begin, worker_group.get_workers())

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        if self._plan is not None and self._starts:
            for worker in worker_group.get_workers():
                _safely(self._collect, worker)
            remove_if_empty(Path(str(self._plan.output)))

    def _begin(self, workers: list[Any]) -> None:
        import ray

        plan = self._plan
        assert plan is not None
        if not self._starts:
            folder = Path(str(plan.output))
            manifest = run_manifest(plan, str(plan.job))
            folder, _ = open_run(folder, manifest, force=plan.force, for_group=plan.group_readable)
            self._plan = plan = plan._replace(output=str(folder), force=False)
        self._starts += 1
        ray.get(
            [
                worker.execute_async(
                    _begin_in_worker, plan, _identity(worker), self._role, restart=self._starts - 1
                )
                for worker in workers
            ]
        )

    def _collect(self, worker: Any) -> None:
        """End the capture of a worker, and bring its files here where it has another machine's disk."""
        import ray

        plan = self._plan
        assert plan is not None
        folder, names = ray.get(worker.execute_async(_end_in_worker, plan), timeout=_END_S)
        here = Path(str(plan.output)).with_name(Path(folder).name)
        for name in names:
            target = here / name
            target.parent.mkdir(parents=True, exist_ok=True)
            unfinished = target.with_name(f".{target.name}.part")
            with unfinished.open("wb") as file:
                while part := ray.get(worker.execute_async(_part_of, f"{folder}/{name}", file.tell())):
                    file.write(part)
            unfinished.rename(target)


def on_worker_start() -> None:
    """For worker_process_setup_hook: an actor is captured once it joins a process group, as RANKSCOPE asks."""
    if environment.asked_words():
        after_import("torch", lambda: when_joined(start))


def start(words: str = "watch") -> None:
    """Capture this actor as RANKSCOPE asks, else as the words do. Its role is RANKSCOPE_ROLE, else its class.

    Each role has a folder in that of the run. Without a process group, the rank is the first free one of the role.
    """
    plan = environment.asked_plan(words)
    if plan is not None:
        _safely(_start, plan)


def _start(plan: Plan) -> None:
    import ray

    context = ray.get_runtime_context()
    job = plan.job or f"{context.get_session_name()}-{context.get_job_id()}"
    names: list[str] = ["", *(context.get_task_function_name() or "task").split(".")]
    role = os.environ.setdefault(ROLE_VARIABLE, names[-2] if context.get_actor_id() else names[-1])
    output = plan.output or default_folder(("ray",), job)
    environment.capture(
        plan._replace(output=f"{output}/{role}", job=job), Identity(0, None, None, None, None, UNNUMBERED)
    )


# In the workers of Ray Train.


def _begin_in_worker(plan: Plan, identity: Identity, role: str, restart: int) -> None:
    from rankscope.inapp.engine import current_engine

    if role:
        os.environ.setdefault(ROLE_VARIABLE, role)
    if not _shares_folder(plan):
        plan = plan._replace(
            output=f"{tempfile.gettempdir()}/rankscope-{plan.job}/{Path(str(plan.output)).name}"
        )
    environment.capture(plan, identity)
    engine = current_engine()
    if engine is not None:
        engine.files.manifest["restart"] = restart


def _end_in_worker(plan: Plan) -> tuple[str, list[str]]:
    """End the capture; the folder of its files, and their names where they are to be brought to the run's folder."""
    from rankscope.inapp.engine import current_engine

    engine = current_engine()
    if engine is None:
        return str(plan.output), []
    engine.finish()
    folder = engine.files.folder
    stem = rank_stem(engine.files.manifest["rank"])
    files = [] if _shares_folder(plan) else [path for path in folder.rglob(f"*{stem}*") if path.is_file()]
    return str(folder), [str(path.relative_to(folder)) for path in files]


def _part_of(path: str, begin: int) -> bytes:
    """The next part of a file; nothing at its end, where it is removed."""
    with Path(path).open("rb") as file:
        file.seek(begin)
        part = file.read(_PART_BYTES)
    if not part:
        Path(path).unlink()
    return part


def _shares_folder(plan: Plan) -> bool:
    """Whether this machine sees the run's folder of the one that started the job."""
    folder = Path(str(plan.output))
    return folder_of(folder, str(plan.job)) == folder


def _identity(worker: Any) -> Identity:
    told = worker.distributed_context
    return Identity(
        told.world_rank, told.local_rank, told.world_size, told.local_world_size, told.node_rank, RAY_TRAIN
    )


def _safely(action: Callable[..., None], *args: Any) -> None:
    try:
        action(*args)
    except Exception as error:  # noqa: BLE001  (the training must go on)
        sys.stderr.write(f"rankscope: Ray: {error}\n")
