"""Starts a Dask cluster, or connects to one that runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.errors import MissingPackageError, RemoteError
from rankscope.store.on_dask import worker_task
from rankscope.store.on_dask.batch_jobs import SETTINGS, BatchJobs
from rankscope.store.on_dask.place import BATCH, LOCAL, Place
from rankscope.store.pool import needed_bytes
from rankscope.store.worker import Task

if TYPE_CHECKING:
    from distributed import Client

Say = Callable[[str], None]

PACKAGES = ("dask", "distributed", "dask_jobqueue", "cryptography")
_CONNECT_S, _CLOSE_S = 15, 3
OWN_DASHBOARD = "127.0.0.1:0"
"""A free port that other machines cannot reach."""


class Cluster(NamedTuple):
    """A cluster in use."""

    client: Client
    check: Callable[[], None]
    """Raises an error if its workers are gone for good."""


@contextmanager
def connected(place: Place, tasks: Sequence[Task], jobs: int, say: Say) -> Iterator[Cluster]:
    """The cluster of a place, for some tasks. One that was started here ends with the block."""
    _require_packages()
    import dask

    with ExitStack() as stack:
        # A worker that is killed is no news: its task is given to another one.
        dask.config.set(
            {"distributed.logging": {"distributed": "critical", "distributed.client": "critical"}}
        )
        import distributed

        if place.where in (LOCAL, *BATCH):
            stack.enter_context(dask.config.set(SETTINGS))
        if place.where == LOCAL:
            preload = [*dask.config.get("distributed.worker.preload"), worker_task.__name__]
            stack.enter_context(dask.config.set({"distributed.worker.preload": preload}))
            cluster = stack.enter_context(_processes(jobs))
            client = stack.enter_context(distributed.Client(cluster, direct_to_workers=True))
            check: Callable[[], None] = _nothing
        elif place.where in BATCH:
            batch = BatchJobs(place, Path(tasks[0].folder).parent, _most_needed(tasks), len(tasks))
            cluster = stack.enter_context(batch.started())
            say(batch.described)
            client = stack.enter_context(distributed.Client(cluster))
            check = batch.check
        else:
            client = stack.enter_context(_existing(place.where))
            check = _note_without_workers(client, say)
        say(f"Dask dashboard: {client.dashboard_link}")
        yield Cluster(client, check)


def _require_packages() -> None:
    for name in PACKAGES:
        if find_spec(name) is None:
            raise MissingPackageError(
                f"--dask needs the package {name.replace('_', '-')}",
                why="It is not installed in this Python.",
                hint="pip install 'rankscope[cluster]'",
            )


def _nothing() -> None:
    """Nothing to check: Dask reports it."""


def _note_without_workers(client: Client, say: Say) -> Callable[[], None]:
    """A cluster of others without workers may get some: it is waited for, and said."""
    said: list[bool] = []

    def check() -> None:
        if not said and not client.nthreads():
            said.append(True)
            say("The Dask scheduler has no workers; reading begins with the first: dask worker ADDRESS")

    return check


def _most_needed(tasks: Sequence[Task]) -> int:
    return max(needed_bytes(Path(task.path)) for task in tasks)


def _processes(jobs: int) -> Any:
    """Processes of this machine. The connections are encrypted: a Dask scheduler runs whatever it is sent, and other
    users of this machine can reach its port."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=jobs,
        threads_per_worker=1,
        memory_limit=0,  # `jobs` is chosen so that they fit
        security=True,
        dashboard_address=OWN_DASHBOARD,
        scheduler_sync_interval=30,  # seconds
        silence_logs=logging.CRITICAL,
    )


@contextmanager
def _existing(where: str) -> Iterator[Client]:
    from distributed import Client

    is_file = where.endswith(".json")
    if is_file and not Path(where).is_file():
        raise RemoteError(
            f"there is no {where}",
            why="A Dask scheduler writes this file when it starts: dask scheduler --scheduler-file FILE",
            hint="Check the path, or name the scheduler's address: --dask tcp://HOST:PORT",
        )
    try:
        client = Client(
            **{"scheduler_file" if is_file else "address": where}, timeout=_CONNECT_S, set_as_default=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise RemoteError(
            f"the Dask scheduler of {where} does not answer",
            why=f"{error}",
            hint="Check that it runs and can be reached from here: dask scheduler",
        ) from error
    try:
        yield client
    finally:
        client.close(timeout=_CLOSE_S)  # a scheduler that has died does not answer
