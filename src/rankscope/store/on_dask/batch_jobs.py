"""Dask workers as jobs of Slurm or PBS, through dask-jobqueue: a job is one node.

The scripts have the directives and the environment that `rankscope job` writes for the same options.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from rankscope.errors import RemoteError, UsageError
from rankscope.files import open_private
from rankscope.jobs.batch import SCHEDULERS, make_output_folders, make_spec
from rankscope.jobs.scheduler import require
from rankscope.jobs.script import preamble, shebang
from rankscope.jobs.spec import Spec
from rankscope.store.on_dask.option import DaskCluster
from rankscope.units import format_bytes, parse_bytes

_ONCE = (
    "site", "nodes", "ppn", "walltime", "queue", "partition", "account", "filesystems", "name", "stdout", "stderr",
    "gres", "gpus_per_node", "constraint", "select", "conda", "venv", "tmpdir",
)  # fmt: skip
_REPEATED = ("directive", "modules", "env")
_OURS = ("memory", "interface")
"""Not options of `rankscope job`: the memory of each node, and the network interface that workers reach us by."""
_NAME = "rankscope-read"
OWN_DASHBOARD = "127.0.0.1:0"
"""A free port that other machines cannot reach."""
_MIB = 1 << 20

SETTINGS: dict[str, object] = {
    # A worker gets a task when it is free: none waits behind one that takes long. There is nothing to fetch ahead.
    "distributed.scheduler.worker-saturation": 1.0,
    # Dask pauses workers whose memory is nearly used up. Ours hold nothing that could be freed: they would not go on.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # Dask watches itself: looking at each process every 20 ms takes more CPU time than scheduling some hundred tasks.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.client.scheduler-info-interval": "30s",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.work-stealing-interval": "5s",
    # Dask's own setting gives every freed array back to the system at once: ten times the page faults.
    "distributed.nanny.pre-spawn-environ": {
        "MALLOC_TRIM_THRESHOLD_": 1 << 28,
        "MALLOC_MMAP_THRESHOLD_": 1 << 25,
        "OMP_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
        "MKL_NUM_THREADS": 1,
    },
}
"""Of the clusters that we start."""


class BatchJobs:
    """The jobs of one reading."""

    def __init__(self, cluster: DaskCluster, shared: Path, needed_bytes: int, tasks: int) -> None:
        """`shared` is a folder that the nodes see, for the keys of encrypted connections."""
        self._scheduler = SCHEDULERS[cluster.where]
        self._shared = shared
        given = _given(cluster)
        self._interface: str | None = given.pop("interface", None)
        self._memory = parse_bytes(given.pop("memory")) if "memory" in given else None
        self._spec = self._fitted(given, needed_bytes, tasks)
        self._cluster: Any = None

    def _fitted(self, given: dict[str, Any], needed_bytes: int, tasks: int) -> Spec:
        """No more processes on a node than its memory allows, and no more nodes than there are tasks."""
        name = given.pop("name", _NAME)
        spec = make_spec(self._scheduler, given, [{"words": ("dask", "worker")}], name=name)
        ppn = spec.ppn
        if self._memory is not None:
            ppn = max(1, min(ppn, self._memory // needed_bytes))
            mebibytes = ceil(self._memory / _MIB)
            if self._scheduler.name == "slurm":
                spec = replace(spec, directives=(f"--mem={mebibytes}M", *spec.directives))
            elif not spec.select:
                spec = replace(spec, select=f"ncpus={ppn}:mem={mebibytes}mb")
        if self._scheduler.name == "pbs" and not spec.select:
            spec = replace(spec, select=f"ncpus={ppn}")
        return replace(spec, ppn=ppn, nodes=min(spec.nodes, ceil(tasks / ppn)))

    @property
    def described(self) -> str:
        spec, s = self._spec, "s" * (self._spec.nodes > 1)
        memory = f", {format_bytes(self._memory)}" if self._memory else ""
        return (
            f"Submitted {spec.nodes} {self._scheduler.title} job{s} ({spec.ppn} process{'es' * (spec.ppn > 1)} on a "
            f"node{memory}): {', '.join(self._ids())}"
        )

    @contextmanager
    def started(self) -> Iterator[Any]:
        """The cluster with its jobs submitted; they are cancelled at the end."""
        require(self._scheduler)
        make_output_folders(self._spec)
        with self.cluster() as self._cluster:
            try:
                self._cluster.sync(_submit, self._cluster, self._spec.nodes)
            except RuntimeError as error:
                raise RemoteError(
                    f"{self._scheduler.submit[0]} refused the job",
                    why=_reason(str(error)),
                    hint="Correct --dask-option KEY=VALUE; the keys are the options of `rankscope job`.",
                ) from error
            yield self._cluster

    def cluster(self) -> Any:
        """The cluster of dask-jobqueue, with no job submitted yet."""
        import dask
        import dask_jobqueue

        spec = self._spec
        kind = {"slurm": dask_jobqueue.SLURMCluster, "pbs": dask_jobqueue.PBSCluster}[self._scheduler.name]
        dialect = self._scheduler.dialect(replace(spec, nodes=1))
        settings = [
            f"export DASK_{key.replace('.', '__').replace('-', '_').upper()}={shlex.quote(str(value))}"
            for key, value in SETTINGS.items()
        ]
        with dask.config.set({f"jobqueue.{self._scheduler.name}.name": spec.name}):
            return kind(
                cores=spec.ppn,
                processes=spec.ppn,
                memory=f"{spec.ppn}GiB",  # not used: the directives and --memory-limit say it
                worker_extra_args=["--memory-limit", "0"],
                python="python" if spec.venv or spec.conda else sys.executable,
                interface=self._interface,
                local_directory=spec.tmpdir,
                shebang=shebang(spec),
                job_directives_skip=["#"],  # all that dask-jobqueue would write
                job_extra_directives=[line.split(" ", 1)[1] for line in dialect.directives],
                job_script_prologue=[*preamble(spec, dialect), *settings],
                security=self._security(),
                protocol="tls://",
                scheduler_options={"dashboard_address": OWN_DASHBOARD},
                silence_logs=logging.CRITICAL,
            )

    def _security(self) -> Any:
        """Keys for this cluster alone, in files that the nodes see and other users do not: a Dask scheduler runs
        whatever it is sent."""
        from distributed import Security

        keys = Security.temporary()
        files = {}
        for name, content in (("cert", keys.tls_client_cert), ("key", keys.tls_client_key)):
            files[name] = str(self._shared / f"tls-{name}.pem")
            with open_private(Path(files[name]), "w") as file:
                file.write(content)
        roles = {
            f"tls_{role}_{name}": path
            for role in ("client", "scheduler", "worker")
            for name, path in files.items()
        }
        return Security(tls_ca_file=files["cert"], require_encryption=True, **roles)

    def check(self) -> None:
        """An error if all jobs have ended: nothing would be read any more."""
        states = {job: self._scheduler.state(job) for job in self._ids()}
        if any(not state.ended for state in states.values()):
            return
        ends = [
            f"job {job}: {state.word}" + ("" if state.code is None else f", exit code {state.code}")
            for job, state in states.items()
        ]
        raise RemoteError(
            f"the {self._scheduler.title} jobs ended before everything was read",
            why="; ".join(ends) or "None is left.",
            hint="Look into their output files (NAME-ID.out), or ask for more time: --dask-option walltime=2h\n"
            "  What was read is kept: the same command continues.",
        )

    def _ids(self) -> list[str]:
        return [str(job.job_id) for job in self._cluster.workers.values() if job.job_id]


async def _submit(cluster: Any, nodes: int) -> None:
    """As `cluster.scale(jobs=nodes)`, and raises what the scheduler answers."""
    from distributed import Status

    for _ in range(nodes):
        cluster.worker_spec.update(cluster.new_worker_spec())
    try:
        await cluster
    except RuntimeError:
        for job in cluster.workers.values():
            # Else the cluster cannot be closed, which cancels those that were submitted.
            job.status = Status.failed
        raise


def _reason(text: str) -> str:
    """What the scheduler wrote, in the error of dask-jobqueue."""
    return " ".join(text.rpartition("stderr:")[2].split()) or "It gave no reason."


def _given(cluster: DaskCluster) -> dict[str, Any]:
    """The options of a cluster as `make_spec` takes them."""
    given: dict[str, Any] = {}
    for key, value in cluster.options:
        name = key.replace("-", "_")
        if name in _REPEATED:
            given.setdefault(name, []).append(value)
        elif name in (*_ONCE, *_OURS):
            given["queue" if name == "partition" else name] = value
        else:
            names = ", ".join(sorted(name.replace("_", "-") for name in (*_ONCE, *_REPEATED, *_OURS)))
            raise UsageError(
                f"--dask-option {key} is not known",
                why=f"The keys are: {names}.",
                hint="They mean what they mean in: rankscope job --help",
            )
    return given
