"""Roles: several groups of processes in one job, each with ranks of its own from 0 on, as in reinforcement learning.

A file belongs to a world: the processes that number each other. It is named by its role, and where a role has several
(the replicas of a rollout engine), by the number of the replica too. The ranks of a run are those of its worlds one
after another (`rank_assignment`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rankscope.capture.run_folder import RUN_MANIFEST, rank_manifests

_ROLLOUT_FOLDER = "agent_loop_rollout_replica_"
"""Where verl's rollout engines write; with relocate_results, into the folder of the other traces."""
_REPLICA = re.compile(rf"(?:{_ROLLOUT_FOLDER}|rollout-replica)(\d+)(?:$|[-_])")
_STAGE_FILE = re.compile(r"(?:.+_)?prof_rank-\d+\.json(?:\.gz)?")
"""Of verl until January 2026, in a folder for each stage."""
_STAGE_ROLES = {"compute_values": "critic", "compute_rm_score": "reward", "e2e": "actor"}
"""Of stages whose names do not begin with the role."""
_RANK, _PROCESS = re.compile(r"rank\d+(?:-of-\d+)?"), re.compile(r"pid\d+")
_NO_ROLE = re.compile(r"train|step\d+")

World = tuple[str, int]
"""The role, and the number of the replica."""


def world_of(path: Path) -> World | None:
    """The world that the name of a file or of its folder tells; None for most files."""
    if replica := _REPLICA.match(path.name) or _REPLICA.fullmatch(path.parent.name):
        return "rollout", int(replica[1])
    if _STAGE_FILE.fullmatch(path.name):
        stage = path.parent.name
        return _STAGE_ROLES.get(stage, stage.partition("_")[0]), 0
    # verl: [role_][scope_][step2_]rank0-of-8_[tp0-pp0_]pid123_20260131…json.gz
    fields = path.name.split("_")
    at = next((number for number, text in enumerate(fields) if _RANK.fullmatch(text)), len(fields))
    if any(_PROCESS.fullmatch(text) for text in fields[at + 1 :]):
        return ("" if at == 0 or _NO_ROLE.fullmatch(fields[0]) else fields[0]), 0
    return None


def worlds_of(files: Iterable[Path]) -> dict[Path, World]:
    """The world of each file, where they are of several; {} for the files of most runs."""
    files = list(files)
    worlds = {path: world_of(path) for path in files}
    folders = {path.parent for path, world in worlds.items() if world is None}
    captured = {folder: (role_in(folder), 0) for folder in folders if len(folders) > 1}
    told = {path: world or captured.get(path.parent) or ("", 0) for path, world in worlds.items()}
    return told if len(set(told.values())) > 1 else {}


def role_in(folder: Path) -> str:
    """The role of the ranks that a capture wrote into this folder; '' for other folders."""
    if not (folder / RUN_MANIFEST).is_file():
        return ""
    return next((str(manifest.get("role") or "") for manifest in rank_manifests(folder)), "")


def folders_of_worlds(folder: Path) -> list[Path]:
    """The folders in this one in which verl writes the traces of a stage or of a rollout engine."""
    with suppress(OSError):
        below = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
        return sorted(path for path in below if path.name.startswith(_ROLLOUT_FOLDER) or _is_stage(path))
    return []


def _is_stage(folder: Path) -> bool:
    with suppress(OSError):
        return any(_STAGE_FILE.fullmatch(path.name) for path in folder.iterdir())
    return False
