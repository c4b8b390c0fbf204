"""The statements of one page agree with each other and with what was recorded, in recorded and simulated runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from conftest import SHARED, kernel_event, slice_event, write_kineto
from rankscope.analysis.core.advice import framework
from rankscope.analysis.core.ceilings import ceilings, device_names
from rankscope.analysis.core.device_events import has_gpu
from rankscope.analysis.core.result import Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.slice_counts import has_launches
from rankscope.analysis.summary import subject, summary
from rankscope.bench.synthetic import Plan, Straggler, write
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

NEVER: dict[str, str] = {
    "without GPU": r"CUDA|--no-gaps|torch\.compile|nvidia-smi|GPU of|ahead of the GPU|host-bound|pin_memory|--peak|MFU",
    "without launches": r"queued|host-bound|launch calls|ahead of the GPU|launch latency|torch\.compile|CUDA graphs",
    "without steps": r"per step|of a [\d.]+ .?s step|A step takes|\bsteps \d",
    "jax": r"torch|DataLoader|ProfilerStep|--record-shapes|--profile-memory|--with-stack|\.item\(\)|foreach|/device:",
    "triton": r"torch\.|DataLoader|ProfilerStep|--record-shapes|--profile-memory|--with-stack|\.item\(\)|foreach",
    "nsys": r"ProfilerStep|ProfilerActivity|needs --record-shapes|--profile-memory|record_shapes=True",
    "known peak": r"known device|peak of the device",
}
"""What must not be said of a run, by what is known of it."""
Pairs = tuple[tuple[str, str], ...]
OPPOSITES: Pairs = (
    (
        r"already queued|queued in time",
        r"(?:is|mainly) host-bound|launch calls come too late|ahead of the GPU",
    ),
    (r"compute-bound", r"idle (?:up to )?(?:[6-9]\d|100) % of the time"),
    (r"launches were not recorded|Launches were not recorded", r"queued|host-bound"),
    (r"No fault found", r"(?:Ranks?|Stage|Step|Group) \S+ (?:costs?|takes) "),
)
"""Two statements that cannot both be on one page."""


def statements(run: Run, result: Result) -> Iterator[str]:
    """What the page says: the first line, who it is about, findings with their evidence and advice, notes."""
    yield result.facts["verdict"]
    yield result.title
    yield subject(run, Scope(), result)
    for finding in result.findings:
        yield f"{finding.title}\n{finding.hint}"
        yield finding.evidence
    yield from map(str, result.notes)


def situation(run: Run, result: Result) -> list[str]:
    """The keys of NEVER that apply."""
    gpu = has_gpu(run, Scope())
    known = any(ceiling.peaks for ceiling in ceilings(run, Scope()).values())
    return [
        *([] if gpu else ["without GPU"]),
        *(["without launches"] if gpu and not has_launches(run) else []),
        *([] if result.facts["steps"] else ["without steps"]),
        *(["known peak"] if known else []),
        framework(run),
    ]


def contradictions(run: Run, never: Mapping[str, str] = NEVER, opposites: Pairs = OPPOSITES) -> list[str]:
    result = summary(run, Scope())
    said = list(statements(run, result))
    wrong = [
        f"{key}: {match[0]!r} in {text!r}"
        for key in situation(run, result)
        for text in said
        if key in never and (match := re.search(never[key], text))
    ]
    for one_text, other_text in combinations(said, 2):
        for left, right in opposites:
            for first, second in ((one_text, other_text), (other_text, one_text)):
                if re.search(left, first) and re.search(right, second):
                    wrong.append(f"{first!r} beside {second!r}")
    wrong += [
        f"the name of a device: {name}" for name in device_names(run, Scope()).values() if name[:1] == "/"
    ]
    wrong += [f"one of several ranks named: {f.title}" for f in result.findings if names_one_of_all(f, run)]
    return wrong


def names_one_of_all(finding: Finding, run: Run) -> bool:
    """A finding that all ranks have names one of them in its title."""
    return 1 < len(finding.ranks) == len(run.ranks) and re.search(r"\brank \d", finding.title) is not None


RECORDED = (
    "jax/mlp-h200", "proton/matmul-h200", "nsys/gpt-h200", "nsys/seqpar-gloo2", "captured-h200",
    "checkpoint-cpu/plain.pt.trace.json.gz",
    "ddp-gloo4", "gpt-graph-h200", "gpt-h200", "gpt-h200-stack", "graph-captured-h200", "hf-trainer-h200",
    "seqpar-gloo4", "seqpar-gloo4-slow2", "seqpar-nccl1-bf16", "seqpar-nccl1-fp32", "batched-p2p-h200",
)  # fmt: skip


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_runs(
    name: str, dataset: Callable[[str], Path], open_real: Callable[[Path], Run], without_workers: None
) -> None:
    assert contradictions(open_real(dataset(name))) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["hta/nccl_data.json.gz", "tracelens/h100_qwen.json.gz"])
def test_runs_of_other_projects(name: str, open_real: Callable[[Path], Run], without_workers: None) -> None:
    if not (SHARED / "public" / name).is_file():
        pytest.skip("needs other projects' traces in ../shared/data/public")
    assert contradictions(open_real(SHARED / "public" / name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["compute", "host", "dataloader"])
def test_simulated_runs(cause: str, tmp_path: Path, without_workers: None) -> None:
    plan = Plan(ranks=4, events_per_rank=2_000, steps=3, straggler=Straggler(2, cause, 4_000_000))
    write(plan, tmp_path)
    assert contradictions(Run(ingest([tmp_path]))) == []


def small_run(folder: Path, changes: dict[str, Any], ranks: int = 2) -> Run:
    """Two ranks alike: a wait for data, two ops, two kernels, two steps; without what `changes` leaves out."""
    for rank in range(ranks):
        events = []
        for step in range(2):
            at = 2000 * step
            if changes.get("steps", True):
                events.append(slice_event(f"ProfilerStep#{step}", at, 2000, cat="user_annotation"))
            events += [
                slice_event(
                    "enumerate(DataLoader)#Iter.__next__",
                    at,
                    700,
                    cat="user_annotation",
                ),
                slice_event("aten::mm", at + 800, 100),
                slice_event("aten::add", at + 1000, 100),
            ]
            for number, when in enumerate((at + 850, at + 1050)):
                link = 10 * step + number + 1
                if changes.get("gpu", True):
                    events.append(kernel_event("gemm", when + 20, 30, link))
                if changes.get("launches", True):
                    args = {"correlation": link}
                    events.append(slice_event("cudaLaunchKernel", when, 5, cat="cuda_runtime", args=args))
        write_kineto(
            folder / f"rank-{rank}.json", events, distributedInfo={"rank": rank, "world_size": ranks}
        )
    return Run(ingest([folder]))


@pytest.mark.parametrize("missing", ["nothing", "steps", "gpu", "launches"])
def test_small_runs_that_lack_something(missing: str, tmp_path: Path, without_workers: None) -> None:
    run = small_run(tmp_path, {missing: False} | ({"launches": False} if missing == "gpu" else {}))
    assert contradictions(run) == []
    texts = list(statements(run, summary(run, Scope())))
    if missing == "nothing":
        assert any("waits for a batch: on average 700 µs a step on both ranks" in text for text in texts)
    if missing == "gpu":
        assert any("the host waits for a batch: on average 700 µs a step" in text for text in texts)
    if missing == "launches":
        assert not any("Host gaps" in text for text in texts)


def test_the_checks_can_fail(tmp_path: Path, without_workers: None) -> None:
    run = small_run(tmp_path, {"gpu": False, "launches": False})
    assert len(contradictions(run, {"without GPU": "waits for a batch"}, ())) == 1
    assert len(contradictions(run, {}, (("waits for a batch", "A step takes"),))) == 1
