"""Runs tasks on a Dask cluster and collects their manifests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from rankscope.errors import RankscopeError, ReadError, RemoteError, StoreError
from rankscope.store.on_dask.clusters import Cluster, connected
from rankscope.store.on_dask.place import Place
from rankscope.store.on_dask.worker_task import read_on_worker
from rankscope.store.worker import Outcome, Task
from rankscope.tools import NCU_VARIABLE, NSYS_VARIABLE
from rankscope.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future

Key = TypeVar("Key")

_RETRIES = 2
"""Of a task that fails. One whose worker is lost is given to others, as often as Dask's allowed-failures says (3)."""
_TOGETHER_S = 1.0
"""Manifests of tasks that finish within this time are fetched together: asking takes longer than the answer."""
_CHECKED_EVERY_S = 10.0
"""While no task finishes, the cluster is asked this often whether it still can."""


def run_on_dask(
    tasks: Mapping[Key, Task],
    place: Place,
    jobs: int,
    advance: Callable[[Key, int, str], None],
    say: Callable[[str], None],
) -> Iterator[tuple[Key, Outcome]]:
    """Yield the manifest or the error of each task as it finishes; the counterpart of `pool.run_tasks`."""
    with connected(place, list(tasks.values()), jobs, say) as cluster, _reported_loss(cluster.client):
        for key, outcome in _collected(tasks, cluster):
            size = outcome["source"]["bytes"] if isinstance(outcome, dict) else _size(tasks[key])
            advance(key, size, "reading")
            yield key, outcome


def _size(task: Task) -> int:
    return Path(task.path).stat().st_size if Path(task.path).is_file() else 0


def _collected(tasks: Mapping[Key, Task], cluster: Cluster) -> Iterator[tuple[Key, Outcome]]:
    variables = {name: os.environ[name] for name in (NSYS_VARIABLE, NCU_VARIABLE) if name in os.environ}
    done: SimpleQueue[Future] = SimpleQueue()
    futures = cluster.client.map(
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
        for future in _next(done, len(pending), cluster):
            if future.status in ("error", "cancelled"):
                key, _ = pending.pop(future.key)
                yield key, _error(future, tasks[key])
            else:  # finished; or lost since, with its worker, and `gather` waits until it is done again
                whole.append(future)
        if whole:
            for future, outcome in zip(whole, cluster.client.gather(whole), strict=True):
                key, _ = pending.pop(future.key)
                yield key, outcome


def _next(done: SimpleQueue[Any], left: int, cluster: Cluster) -> list[Any]:
    """The tasks that finish next, at least one of the `left`."""
    finished: list[Any] = []
    wait_s = _CHECKED_EVERY_S
    while len(finished) < left:
        try:
            finished.append(done.get(timeout=wait_s))
        except Empty:
            if finished:
                break
            cluster.check()
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
