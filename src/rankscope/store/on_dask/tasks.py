"""Runs tasks on a Dask cluster, which is started or connected to, and collects their manifests."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rankscope.errors import MissingPackageError, RankscopeError, ReadError, RemoteError, StoreError
from rankscope.store.on_dask.batch_jobs import OWN_DASHBOARD, SETTINGS, BatchJobs
from rankscope.store.on_dask.option import BATCH, LOCAL, DaskCluster
from rankscope.store.on_dask.worker_task import read_on_worker
from rankscope.store.pool import needed_bytes
from rankscope.store.worker import Outcome, Task
from rankscope.tools import NCU_VARIABLE, NSYS_VARIABLE
from rankscope.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future

Key = TypeVar("Key")
Say = Callable[[str], None]

PACKAGES = ("dask", "distributed", "dask_jobqueue", "cryptography")
_CONNECT_S, _CLOSE_S = 15, 3
_RETRIES = 2
"""Of a task that fails. One whose worker is lost is given to others, as often as Dask's allowed-failures says (3)."""
_TOGETHER_S = 1.0
"""Manifests of tasks that finish within this time are fetched together: asking takes longer than the answer."""
_CHECKED_EVERY_S = 10.0
"""While no task finishes, the cluster is asked this often whether it still can."""


def run_on_dask(
    tasks: Mapping[Key, Task],
    cluster: DaskCluster,
    jobs: int,
    advance: Callable[[Key, int, str], None],
    say: Say,
) -> Iterator[tuple[Key, Outcome]]:
    """Yield the manifest or the error of each task as it finishes; the counterpart of `pool.run_tasks`."""
    with connected(cluster, list(tasks.values()), jobs, say) as connection, _reported_loss(connection.client):
        for key, outcome in _collected(tasks, connection):
            path = Path(tasks[key].path)
            advance(key, path.stat().st_size if path.is_file() else 0, "reading")
            yield key, outcome


class Connection(NamedTuple):
    """A cluster in use."""

    client: Client
    check: Callable[[], None]
    """Raises an error if its workers are gone for good."""


@contextmanager
def connected(cluster: DaskCluster, tasks: Sequence[Task], jobs: int, say: Say) -> Iterator[Connection]:
    """The cluster, for some tasks. One that was started here ends with the block."""
    for name in PACKAGES:
        if find_spec(name) is None:
            raise MissingPackageError(
                f"--dask needs the package {name.replace('_', '-')}",
                why="It is not installed in this Python.",
                hint="pip install 'rankscope[cluster]'",
            )
    import dask

    with ExitStack() as stack:
        # A worker that is killed is no news: its task is given to another one.
        dask.config.set(
            {"distributed.logging": {"distributed": "critical", "distributed.client": "critical"}}
        )
        import distributed

        check: Callable[[], None] = lambda: None  # noqa: E731 - Dask reports it
        if cluster.where in (LOCAL, *BATCH):
            stack.enter_context(dask.config.set(SETTINGS))
        if cluster.where == LOCAL:
            preload = [*dask.config.get("distributed.worker.preload"), read_on_worker.__module__]
            stack.enter_context(dask.config.set({"distributed.worker.preload": preload}))
            # The connections are encrypted: a Dask scheduler runs whatever it is sent, and other users of this machine
            # can reach its port.
            processes = distributed.LocalCluster(
                n_workers=jobs,
                threads_per_worker=1,
                memory_limit=0,  # `jobs` is chosen so that they fit
                security=True,
                dashboard_address=OWN_DASHBOARD,
                scheduler_sync_interval=30,  # seconds
                silence_logs=logging.CRITICAL,
            )
            stack.enter_context(processes)
            client = stack.enter_context(distributed.Client(processes, direct_to_workers=True))
        elif cluster.where in BATCH:
            needed = max(needed_bytes(Path(task.path)) for task in tasks)
            batch = BatchJobs(cluster, Path(tasks[0].folder).parent, needed, len(tasks))
            submitted = stack.enter_context(batch.started())
            say(batch.described)
            client = stack.enter_context(distributed.Client(submitted))
            check = batch.check
        else:
            client = stack.enter_context(_existing(cluster.where))
            check = _note_without_workers(client, say)
        say(f"Dask dashboard: {client.dashboard_link}")
        yield Connection(client, check)


def _note_without_workers(client: Client, say: Say) -> Callable[[], None]:
    """A cluster of others without workers may get some: it is waited for, and said."""
    said: list[bool] = []

    def check() -> None:
        if not said and not client.nthreads():
            said.append(True)
            say("The Dask scheduler has no workers; reading begins with the first: dask worker ADDRESS")

    return check


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


def _collected(tasks: Mapping[Key, Task], connection: Connection) -> Iterator[tuple[Key, Outcome]]:
    variables = {name: os.environ[name] for name in (NSYS_VARIABLE, NCU_VARIABLE) if name in os.environ}
    done: SimpleQueue[Future] = SimpleQueue()
    futures = connection.client.map(
        read_on_worker,
        list(tasks.values()),
        key="rankscope-read",
        pure=False,
        retries=_RETRIES,
        version=__version__,
        variables=variables,
    )
    pending = {future.key: (key, future) for key, future in zip(tasks, futures, strict=True)}
    for future in futures:
        future.add_done_callback(done.put)
    del futures  # what is not pending is released on its worker
    while pending:
        whole = []
        for future in _next(done, len(pending), connection):
            if future.status in ("error", "cancelled"):
                key, _ = pending.pop(future.key)
                yield key, _error(future, tasks[key])
            else:  # finished; or lost since, with its worker, and `gather` waits until it is done again
                whole.append(future)
        if whole:
            for future, outcome in zip(whole, connection.client.gather(whole), strict=True):
                key, _ = pending.pop(future.key)
                yield key, outcome


def _next(done: SimpleQueue[Any], left: int, connection: Connection) -> list[Any]:
    """The tasks that finish next, at least one of the `left`."""
    finished: list[Any] = []
    wait_s = _CHECKED_EVERY_S
    while len(finished) < left:
        try:
            finished.append(done.get(timeout=wait_s))
        except Empty:
            if finished:
                break
            connection.check()
            continue
        if len(finished) == 1:
            until = time.monotonic() + _TOGETHER_S
        wait_s = max(0.0, until - time.monotonic())
    return finished


def _error(future: Future, task: Task) -> RankscopeError:
    """The error of one task; one that every task would have is raised."""
    from distributed import KilledWorker

    if future.cancelled():
        raise ConnectionError
    error = future.exception()
    if isinstance(error, RemoteError):
        raise error
    if isinstance(error, RankscopeError):
        return error
    if isinstance(error, ImportError):
        raise RemoteError(
            "a Dask worker cannot import rankscope",
            why=f"{error}.",
            hint="Start the workers with the Python environment of this command.",
        )
    if isinstance(error, KilledWorker):
        return StoreError(
            f"reading {task.path} was given up",
            why=f"{error.allowed_failures + 1} Dask workers died while they read it; often they need more memory.",
            hint="Give each worker more memory, or read this file without --dask.",
        )
    return ReadError(
        f"cannot read {task.path}",
        why=f"The task failed: {type(error).__name__}: {error}",
        hint="Please report this, with the file if you can.",
    )


@contextmanager
def _reported_loss(client: Client) -> Iterator[None]:
    """A scheduler that does not answer any more."""
    from distributed import CancelledError

    address = client.scheduler.address
    try:
        yield
    except (CancelledError, OSError) as error:
        raise RemoteError(
            f"the Dask scheduler at {address} does not answer any more",
            why="The connection to it was lost while its workers were reading.",
            hint="What was read is kept: run the same command again, with this or another cluster.",
        ) from error
