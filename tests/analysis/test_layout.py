"""Layouts: planted grids come back, groups are recognised by name, by traffic and by shape, bubbles are exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from pipeline_traces import PipelinePlan, write_pipeline
from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.layout import ObservedGroup, axis_from_name, infer_layout
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.errors import UsageError
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, write


def report(run: Run, name: str, by: str | None = None, **scope: Any) -> Result:
    return REPORTS[name].analyse(run, Scope(**scope), by)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, PipelinePlan, Any]:
    folder = tmp_path_factory.mktemp("pipeline")
    plan = PipelinePlan(stages=3, data=2, tensor=2, micro_batches=3, steps=2, slow_stage=1, slow_ns=300_000)
    truth = write_pipeline(plan, folder)
    return Run(ingest([folder])), plan, truth


@pytest.mark.slow
def test_the_grid_of_a_pipeline(pipeline: tuple[Run, PipelinePlan, Any]) -> None:
    run, plan, truth = pipeline
    result = report(run, "layout")
    assert result.findings[0].title == "12 ranks: pp 3 x dp 2 x tp 2"
    assert result.rows[0] == {"pp": 0, "dp": 0, "tp_0": 0, "tp_1": 1}
    for row in result.rows:
        for tensor in range(plan.tensor):
            assert row[f"tp_{tensor}"] == plan.rank_at(row["pp"], row["dp"], tensor)
    by_rank = [(row["pp"], row["dp"], row["tp"]) for row in report(run, "layout", "rank").rows]
    assert by_rank == truth["places"]


@pytest.mark.slow
def test_groups_of_a_pipeline(pipeline: tuple[Run, PipelinePlan, Any]) -> None:
    run, _, _ = pipeline
    rows = {row["axis"]: row for row in report(run, "layout.groups").rows}
    assert {axis: (row["groups"], row["size"], row["stride"]) for axis, row in rows.items()} == {
        "world": (1, 12, 1),
        "pp": (4, 3, 4),
        "dp": (6, 2, 2),
        "tp": (6, 2, 1),
    }
    # two steps, three micro-batches, two directions, two of three links, four pipelines, both ends
    assert rows["pp"]["kinds"] == "send 96, recv 96"
    one_step = {row["axis"]: row for row in report(run, "layout.groups", steps=(0, 0)).rows}
    assert one_step["tp"]["collectives"] == rows["tp"]["collectives"] // 2


@pytest.mark.slow
def test_bubbles_are_exact(pipeline: tuple[Run, PipelinePlan, Any]) -> None:
    run, plan, truth = pipeline
    rows = {row["rank"]: row for row in report(run, "bubbles", "rank", steps=(1, 1)).rows}
    for rank in (0, 5, 10):
        # Microsecond by microsecond of the second step: idle, or waiting for a message, while another stage computes.
        busy, computing = set[int](), set[int]()
        for peer in plan.group("pp", rank)[2]:
            for work in truth["works"][peer]:
                whole = range(work.start // 1000, work.end // 1000)
                if peer == rank:
                    busy.update(whole[-work.ns // 1000 :] if work.axis == "pp" else whole)
                elif work.axis == "compute":
                    computing.update(whole)
        ended = [step["windows"][rank][1] // 1000 for step in truth["steps"]]
        expected = 1000 * len((computing - busy).intersection(range(ended[0], ended[1])))
        assert rows[rank]["bubble_ns"] == expected and rows[rank]["window_ns"] == 1000 * (ended[1] - ended[0])
    stages = report(run, "bubbles")
    assert [row["stage"] for row in stages.rows] == [0, 1, 2] and {row["ranks"] for row in stages.rows} == {4}
    # The last stage turns round without a message, and there is no autograd in these files.
    assert not stages.findings and any("forward and backward passes" in note for note in stages.notes)


@pytest.mark.slow
def test_groups_without_names_are_recognised_by_what_they_do(tmp_path: Path) -> None:
    plan = PipelinePlan(stages=2, data=2, tensor=2, micro_batches=2, steps=1, described=False)
    truth = write_pipeline(plan, tmp_path)
    run = Run(ingest([tmp_path]))
    by_rank = report(run, "layout", "rank")
    assert [(row["pp"], row["dp"], row["tp"]) for row in by_rank.rows] == truth["places"]
    assert any("inferred from traffic, size and stride" in note for note in by_rank.notes)


@pytest.mark.thorough
def test_tensor_and_data_parallel(tmp_path: Path) -> None:
    write(Plan(ranks=8, events_per_rank=4_000, steps=2, tensor_parallel=4, missing=(5,)), tmp_path)
    result = report(Run(ingest([tmp_path])), "layout")
    assert result.findings[0].title == "8 ranks: dp 2 x tp 4"
    assert list(result.rows) == [
        {"dp": 0, **{f"tp_{i}": i for i in range(4)}},
        {"dp": 1, **{f"tp_{i}": 4 + i for i in range(4)}},
    ]
    assert "no file for rank 5" in result.notes


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("mesh_tp", "tp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("model parallel", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("mesh_pp", "pp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("fsdp:dp_shard", "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("mesh_ep", "ep"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("sequenceParallel", "cp"),
        ("EMBEDDING_GROUP", "other"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "other"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "other"),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "other"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "other"),
        ("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0", "other"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO", "other"),
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "other"),
        ("HYBRID_DP_CP_GROUP_4", "other"),
        ("default_pg", "world"),
        ("undefined", None),
        ("17", None),
        ("stepper", None),
    ],
)
def test_names_of_groups(text: str, axis: str | None) -> None:
    assert axis_from_name(text) == axis


def test_experts_inside_data_parallel_ranks() -> None:
    groups = [
        ObservedGroup("1", "mesh_dp", (0, 1, 2, 3), {"reduce_scatter": 4}),
        ObservedGroup("2", "", (0, 1), {"all_to_all": 9}),
        ObservedGroup("3", "", (2, 3), {"all_to_all": 9}),
    ]
    layout = infer_layout(groups, 4)
    assert layout.axes == ("dp", "ep")
    assert layout.places[3] == {"dp": 3, "ep": 1}


MEGATRON = {
    "DATA_PARALLEL_GROUP_WITH_CP": "cp dp",
    "DATA_PARALLEL_GROUP_WITH_CP_GLOO": "cp dp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_GLOO": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "MODEL_PARALLEL_GROUP": "tp pp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp cp dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp dp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp cp",
}
MEGATRON_EXPERTS = {
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "tp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "tp ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "tp ep pp",
    "EXPERT_DATA_PARALLEL_GROUP": "dp",
    "EXPERT_DATA_PARALLEL_GROUP_GLOO": "dp",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "tp ep dp pp",
}
"""The groups of Megatron-core by description, with the axes that each spans; innermost first."""


def rank_groups(sizes: dict[str, int], axes: str) -> list[tuple[int, ...]]:
    """The ranks that differ only in these axes; the first of `sizes` is the innermost."""
    strides, stride = {}, 1
    for axis, size in sizes.items():
        strides[axis], stride = stride, stride * size
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(stride):
        others = (rank // strides[axis] % size for axis, size in sizes.items() if axis not in axes.split())
        groups.setdefault(tuple(others), []).append(rank)
    return [tuple(ranks) for ranks in groups.values()]


@pytest.mark.parametrize(
    "busiest", ["EXPERT_DATA_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP", "MODEL_PARALLEL_GROUP"]
)
@pytest.mark.parametrize(
    ("tp", "cp", "dp", "pp", "etp", "ep"),
    [
        (2, 1, 2, 2, 2, 2),
        (2, 2, 2, 1, 2, 2),
        (2, 2, 2, 2, 2, 4),
        (4, 2, 1, 2, 1, 8),
        (1, 1, 4, 2, 1, 4),
        (2, 1, 4, 1, 1, 4),
        (1, 4, 2, 2, 1, 1),
        (2, 2, 1, 3, 1, 2),
    ],
)
def test_the_groups_of_megatron_make_up_the_world(
    tp: int, cp: int, dp: int, pp: int, etp: int, ep: int, busiest: str
) -> None:
    world = tp * cp * dp * pp
    dense = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    experts = {"tp": etp, "ep": ep, "dp": world // (etp * ep * pp), "pp": pp}
    groups = [
        ObservedGroup(str(100 * number + place), name, ranks, {"all_reduce": 90 if name == busiest else 7})
        for sizes, names in ((dense, MEGATRON), (experts, MEGATRON_EXPERTS))
        for number, (name, axes) in enumerate(names.items())
        for place, ranks in enumerate(rank_groups(sizes, axes))
    ]
    layout = infer_layout([ObservedGroup("0", "default_pg", tuple(range(world)), {}), *groups], world)
    sizes = dense | {"ep": ep}
    assert layout.axes == tuple(axis for axis in ("pp", "dp", "ep", "cp", "tp") if sizes[axis] > 1)
    assert {axis: layout.sizes[axis] for axis in layout.axes} == {axis: sizes[axis] for axis in layout.axes}
    for rank, place in layout.places.items():
        at = {
            "tp": rank % tp,
            "cp": rank // tp % cp,
            "dp": rank // (tp * cp) % dp,
            "pp": rank // (tp * cp * dp),
        }
        at |= {"ep": rank // etp % ep}
        assert place == {axis: at[axis] for axis in layout.axes}
        for axis in set(layout.axes) - {"ep"}:
            assert layout.group_of(rank, axis) == next(g for g in rank_groups(dense, axis) if rank in g)
    assert not any("multiply" in note for note in layout.notes)


def test_axes_that_do_not_make_the_world_are_said() -> None:
    layout = infer_layout([ObservedGroup("1", "mesh_tp", (0, 1, 2), {})], 8)
    assert any("tp 3 does not multiply to 8 ranks" in note for note in layout.notes)
    copies = infer_layout(
        [ObservedGroup("1", "mesh_tp", (0, 1), {}), ObservedGroup("2", "mesh_tp", (2, 3), {})], 4
    )
    assert copies.axes == ("dp", "tp") and copies.places[2] == {"tp": 0, "dp": 1}


def test_one_group_of_all_ranks(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "ddp-gloo4")
    result = report(run, "layout")
    assert list(result.rows) == [{"ranks": "0-3"}]
    assert result.findings[0].title == "4 ranks, 1 process group: world"
    assert report(run, "layout.groups").rows[0]["axis"] == "world"
    bubbles = report(run, "bubbles")
    assert bubbles.rows == () and any("no pipeline-parallel process group" in note for note in bubbles.notes)


def test_real_nccl_metadata(shared: Path, open_real: Callable[[Path], Run]) -> None:
    run = open_real(shared / "public/hta/nccl_data.json.gz")
    (row,) = report(run, "layout.groups").rows
    assert (row["axis"], row["size"], row["kinds"]) == ("world", 2, "all_reduce 15, broadcast 6")
    assert "no file for rank 1" in report(run, "layout").notes


@pytest.mark.slow
def test_no_groups_at_all(tmp_path: Path) -> None:
    run = open_trace(
        write_kineto(tmp_path / "a.json", [slice_event("aten::mm", 1, 5), kernel_event("k", 2, 3)])
    )
    for name in ("layout", "layout.groups", "bubbles"):
        assert REPORTS[name].analyse(run, Scope(), None).notes
    assert any("no process groups" in note for note in report(run, "layout").notes)


def test_a_pipeline_of_one_stage_is_refused() -> None:
    with pytest.raises(UsageError, match="at least two stages"):
        PipelinePlan(stages=1)
