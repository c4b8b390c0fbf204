"""The files of one rank in the run folder, and its manifest."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankscope.capture.job_name import name_run, trainer_of
from rankscope.capture.plan import Plan, recorded_command
from rankscope.capture.rank import UNNUMBERED, Identity
from rankscope.capture.run_folder import (
    FORMAT,
    claim_rank,
    open_run,
    rank_manifest,
    rank_stem,
    take_for_trainer,
    write_rank,
)
from rankscope.errors import CaptureError
from rankscope.version import __version__

# What torchrun calls the ranks of a job without --role.
DEFAULT_ROLE = "default"
ROLE_VARIABLE = "RANKSCOPE_ROLE"
"""Names the role of a process, where a job has several."""


def run_manifest(plan: Plan, job: str) -> dict[str, Any]:
    """The content of rankscope.json. It holds no values of environment variables, and no secrets of the command."""
    return {
        "job": job,
        "tool": plan.tool,
        "command": recorded_command(plan.command),
        "ranks": plan.ranks,
        "when": {"kind": type(plan.when).__name__, **plan.when._asdict()},
        "rankscope": __version__,
        "created_unix_ns": time.time_ns(),
    }


def clock_anchor() -> dict[str, int]:
    """One moment on both clocks, with which readers align ranks that share no collective."""
    return {"unix_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()}


def _rank_fields(identity: Identity) -> dict[str, Any]:
    fields = ("rank", "local_rank", "world_size", "local_size", "node")
    return {**{name: getattr(identity, name) for name in fields}, "rank_source": identity.source}


class RankFiles:
    """The run folder as this rank sees it. Nothing is written before ``claim``."""

    def __init__(self, plan: Plan, identity: Identity, env: Mapping[str, str]) -> None:
        self._plan = plan
        self._env = env
        self.identity = identity
        # Absolute from here on: the script may change its working directory before the first window.
        self.folder, self.job = name_run(env, identity, plan.command, plan.output, plan.job)
        self.claimed = False
        self.first = False
        self.manifest: dict[str, Any] = {
            "format": FORMAT,
            "job": self.job,
            **_rank_fields(identity),
            "role": env.get(ROLE_VARIABLE) or env.get("ROLE_NAME", DEFAULT_ROLE),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "restart": int(env.get("TORCHELASTIC_RESTART_COUNT", "0") or 0),
            "python": ".".join(map(str, sys.version_info[:3])),
            "clock": [clock_anchor()],
            "notes": [],
            "windows": [],
            "state": "running",
        }

    def identify(self, identity: Identity) -> None:
        """The process has got its rank only now, from torch.distributed; it names the job as those do that had theirs
        at the start."""
        self.identity = identity
        self.manifest.update(_rank_fields(identity))
        if not self.claimed and self._plan.job is None:
            folder, self.job = name_run(self._env, identity, self._plan.command, self._plan.output, None)
            self.manifest["job"] = self.job
            if self._plan.output is None:
                self.folder = self.folder.parent / folder.name

    def claim(self) -> None:
        """Open the run folder and take this rank in it; does nothing the second time."""
        if not self.claimed:
            force = self._plan.force
            manifest = run_manifest(self._plan, self.job)
            self.folder, self.first = open_run(
                self.folder, manifest, force=force, for_group=self._plan.group_readable
            )
            trainer = trainer_of(self._env) if self._plan.watch else None
            if trainer is not None and not take_for_trainer(self.folder, trainer):
                # Another trainer of the job has the same ranks: this one gets a run of its own.
                self.job = self.manifest["job"] = f"{self.job}-{trainer}"
                self.folder, self.first = open_run(self.folder, {**manifest, "job": self.job}, force=False)
            while not self.claimed:
                try:
                    claim_rank(self.folder, self.manifest, force=force)
                    self.claimed = True
                except CaptureError:
                    if self.identity.source != UNNUMBERED:
                        raise
                    self.identify(self.identity._replace(rank=self.identity.rank + 1))

    @property
    def taken(self) -> bool:
        """Whether another process is this rank of the run, such as a child of this one."""
        return not self.claimed and rank_manifest(self.folder, self.manifest["rank"]).exists()

    def target(self, window: int) -> Path:
        """One file for each rank and cycle; the first has no number. TensorBoard's plug-in expects another form."""
        stem = rank_stem(self.manifest["rank"])
        if self._plan.tensorboard_dir:
            folder = Path(self._plan.tensorboard_dir)
            folder.mkdir(parents=True, exist_ok=True)
            worker = f"{stem}_{self.manifest['host']}_{self.manifest['pid']}"
            return folder / f"{worker}.{time.time_ns()}.pt.trace.json.gz"
        cycle = f".cycle-{window}" if window else ""
        return self.folder / f"{stem}{cycle}.pt.trace.json.gz"

    def save(self) -> None:
        write_rank(self.folder, self.manifest)
