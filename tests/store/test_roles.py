"""The traces of several roles, as verl, Megatron and captures of Ray actors lay them out, are one run."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, slice_event, write_kineto
from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.run_info import facts
from rankscope.analysis.summary import subject, summary
from rankscope.store.arrays import NONE
from rankscope.store.discover import Folders
from rankscope.store.index import world_of
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.usefixtures("without_workers")

SNAPSHOT = DATA / "memory" / "gpt-h200.pickle.gz"
WALL_NS = 1_700_000_000_000_000_000


def trace(path: Path, rank: int, world: int, at: float = 0.0, **fields: Any) -> Path:
    """Of one rank of a world: a step, in which it sends to the next one and reduces with all of them."""
    ranks = [*range(world)]
    about = {
        "Process Group Name": "0",
        "Process Group Ranks": str(ranks),
        "Group size": world,
        "dtype": "Float",
        "In msg nelems": 8,
        "Out msg nelems": 8,
    }
    here: dict[str, Any] = {"tid": 7, "cat": "kernel"}
    first = {"stream": 7, "Collective name": "allreduce", "Seq": 1, **about}
    kind = "send" if rank % 2 == 0 else "recv"
    peer = {"send": "Dst Rank", "recv": "Src Rank"}[kind]
    second = {
        "stream": 7,
        "Collective name": kind,
        "Seq": 2,
        **about,
        peer: rank + 1 if kind == "send" else rank - 1,
    }
    events = [
        slice_event("ProfilerStep#3", at + 1.0, 100.0, cat="user_annotation"),
        slice_event("ncclDevKernel_AllReduce_Sum", at + 10.0, 5.0, **here, args=first),
        slice_event("ncclDevKernel_SendRecv", at + 20.0, 5.0, **here, args=second),
    ]
    return write_kineto(
        path,
        events,
        baseTimeNanoseconds=WALL_NS,
        distributedInfo={
            "backend": "nccl",
            "rank": rank,
            "world_size": world,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": ranks}],
        },
        **fields,
    )


def roles(run: Run) -> dict[str, list[int]]:
    by_role: dict[str, list[int]] = {}
    for entry in sorted(run.segments, key=lambda entry: entry.rank):
        if entry.rank not in by_role.setdefault(entry.role, []):
            by_role[entry.role].append(entry.rank)
    return by_role


def opened(folder: Path) -> Run:
    return Run(ingest([Folders().meant(folder)]))


def write_verl(folder: Path) -> None:
    """As verl's docs/perf/torch_profiling.md describes it: two files of each actor, and two engines of two GPUs."""
    for rank in range(2):
        for number, scope in enumerate(("actor-update", "ref-compute-log-prob")):
            name = (
                f"actor-rollout-ref_{scope}_step2_rank{rank}-of-2_tp0-pp0_pid1{rank}_2026012310{number}.json"
            )
            trace(folder / name, rank, 2, at=1000.0 * number)
        trace(folder / f"value-model_step2_rank{rank}-of-2_pid2{rank}_20260123100.json", rank, 2)
        for replica in range(2):
            engine = folder / f"agent_loop_rollout_replica_{replica}"
            trace(engine / f"dp0_pp0_tp{rank}_rank{rank}.1785391501.pt.trace.json", rank, 2)


VERL = {"actor-rollout-ref": [0, 1], "rollout": [2, 3, 4, 5], "value-model": [6, 7]}


@pytest.mark.slow
def test_verl(tmp_path: Path) -> None:
    write_verl(tmp_path)
    run = opened(tmp_path)
    assert roles(run) == VERL
    assert dict(facts(run, Scope())["Run"])["Roles"] == "actor-rollout-ref 0-1, rollout 2-5, value-model 6-7"
    assert subject(run, Scope(), summary(run, Scope())).startswith(
        "8 ranks (actor-rollout-ref 0-1, rollout 2-5, value-model 6-7), 2 steps"
    )
    layout = layout_of(run, Scope())
    assert [layout.work(rank)[0] for rank in run.ranks] == [
        role for role, ranks in VERL.items() for _ in ranks
    ]


def test_collectives_are_those_of_one_world(tmp_path: Path) -> None:
    """All worlds have a group 0 of the ranks 0 and 1, and use it at the same time."""
    write_verl(tmp_path)
    rows = opened(tmp_path).collectives
    assert (rows.match != NONE).all()
    together: dict[int, set[int]] = {}
    for rank, match in zip(rows.rank.tolist(), rows.match.tolist(), strict=True):
        together.setdefault(match, set()).add(rank)
    assert sorted(map(sorted, together.values())) == sorted(
        [first, first + 1] for first, files in ((0, 2), (2, 1), (4, 1), (6, 1)) for _ in range(2 * files)
    )
    assert {group.ranks for group in rows.groups} == {(0, 1), (2, 3), (4, 5), (6, 7)}


@pytest.mark.parametrize("last", ["value-model", "actor", "agent_loop"])
def test_a_role_that_comes_later(tmp_path: Path, last: str) -> None:
    write_verl(tmp_path)
    late = [path for path in tmp_path.rglob("*.json") if last in str(path.relative_to(tmp_path))]
    for path in late:
        path.rename(tmp_path / f"{path.parent.name}-{path.name}.away")
    before = opened(tmp_path)
    assert len({entry.rank for entry in before.segments}) == 8 - len({*roles_of(late)})
    for path in late:
        (tmp_path / f"{path.parent.name}-{path.name}.away").rename(path)
    assert roles(opened(tmp_path)) == VERL


def roles_of(paths: list[Path]) -> list[tuple[Any, str]]:
    return [(world_of(path), path.name[path.name.index("rank") :][:5]) for path in paths]


def test_stages_of_earlier_verl(tmp_path: Path) -> None:
    stages = (
        "actor_compute_log_prob",
        "actor_update",
        "compute_rm_score",
        "ref_compute_log_prob",
        "rollout_generate",
    )
    for number, (stage, rank) in enumerate(product(stages, range(2))):
        trace(tmp_path / stage / f"prof_rank-{rank}.json", rank, 2, at=1000.0 * number)
    run = opened(tmp_path)
    assert roles(run) == {"actor": [0, 1], "ref": [2, 3], "reward": [4, 5], "rollout": [6, 7]}


def test_captures_of_several_roles(tmp_path: Path) -> None:
    for role, rank in product(("Rollout", "Trainer"), range(2)):
        folder = tmp_path / role
        (folder).mkdir(exist_ok=True)
        (folder / "rankscope.json").write_text(json.dumps({"format": 1, "job": "j"}))
        about = {"format": 1, "job": "j", "rank": rank, "role": role, "windows": []}
        (folder / f"rank-{rank:05d}.rankscope.json").write_text(json.dumps(about))
        trace(
            folder / f"rank-{rank:05d}.pt.trace.json",
            rank,
            2,
            rankscope={"job": "j", "rank": rank, "role": role},
        )
    assert roles(opened(tmp_path)) == {"Rollout": [0, 1], "Trainer": [2, 3]}
    assert {entry.rank_source for entry in opened(tmp_path / "Trainer").segments} == {"distributedInfo"}


@pytest.mark.parametrize("snapshots", [None, "pytorch_profile", "."])
def test_megatron(tmp_path: Path, snapshots: str | None) -> None:
    """--profile-ranks 1 3 --tensorboard-dir RUN/tensorboard; NeMo's memory snapshots are in one of two folders."""
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.out.tfevents.17").write_bytes(b"\0\1\2")
    for rank in (1, 3):
        trace(tmp_path / "torch_profile" / f"rank-{rank}.json", rank, 4)
        if snapshots is not None:
            (tmp_path / snapshots).mkdir(exist_ok=True)
            shutil.copy(SNAPSHOT, tmp_path / snapshots / f"snapshot_{rank}.pickle.gz")
    run = opened(tmp_path)
    formats = {"kineto"} if snapshots is None else {"kineto", "memory"}
    assert {(entry.rank, entry.format) for entry in run.segments} == {*product((1, 3), formats)}
    assert run.roles == {}


FIELDS = {
    "role": ("", "actor_", "value-model_", "actor-rollout-ref_"),
    "scope": ("", "train_", "actor-update_"),
    "step": ("", "step12_"),
    "world": ("", "-of-8"),
    "axes": ("", "tp1-pp0-dp2-cp0_"),
    "end": ("", "_part1", "_mb3-4"),
}


def test_names_of_verl() -> None:
    """Every name that verl's build_trace_basename can make. A stage without a role is taken for one."""
    for role, scope, step, world, axes, end in product(*FIELDS.values()):
        name = f"{role}{scope}{step}rank5{world}_{axes}pid123_20260131123456789{end}.json.gz"
        expected = role or ("" if scope == "train_" else scope)
        assert world_of(Path("profile") / name) == (expected.rstrip("_"), 0), name


@pytest.mark.parametrize(
    "name",
    ["rank-00003.pt.trace.json.gz", "rank3_trace.json", "vm_123.17.pt.trace.json", "trace_rank0_pid.json"],
)
def test_other_names(name: str) -> None:
    assert world_of(Path("run") / name) is None
