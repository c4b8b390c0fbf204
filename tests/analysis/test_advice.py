"""Advice fits the framework, the profiler and the device of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import open_trace, slice_event, write_kineto
from rankscope.analysis.core.advice import framework, larger_messages, ways_to_overlap
from rankscope.analysis.core.ceilings import device_names
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.scenarios import no_gaps
from rankscope.analysis.critical_path.whatif import whatif
from rankscope.analysis.findings import collect
from rankscope.analysis.health.doctor import doctor
from rankscope.analysis.questions import QUESTIONS
from rankscope.analysis.summary import subject, summary
from rankscope.errors import UsageError
from rankscope.timeline.run import Run

OpenData = Callable[[str], Run]


@pytest.fixture(scope="module")
def opened(
    dataset: Callable[[str], Path], open_real: Callable[[Path], Run], without_workers: None
) -> OpenData:
    return lambda name: open_real(dataset(name))


@pytest.mark.parametrize(
    ("name", "expected", "device"),
    [
        ("jax/mlp-h200", "jax", "NVIDIA H200"),
        ("proton/matmul-h200", "triton", ""),
        ("nsys/gpt-h200", "nsys", "NVIDIA H200"),
        ("gpt-h200", "torch", "NVIDIA H200"),
    ],
)
def test_the_framework_and_the_device_of_a_recording(
    opened: OpenData, name: str, expected: str, device: str
) -> None:
    run = opened(name)
    assert framework(run) == expected
    assert device_names(run, Scope()) == {0: device}


def all_advice(run: Run) -> str:
    return "\n".join(f"{finding.title} {finding.hint}" for finding in collect(run, Scope()))


def test_advice_for_jax(opened: OpenData) -> None:
    text = all_advice(opened("jax/mlp-h200"))
    assert all(word in text for word in ("jax.jit", "donate_argnums", "asynchronous dispatch"))
    assert "torch" not in text and "forward pass" not in text


def test_proton_has_no_launches(opened: OpenData) -> None:
    run = opened("proton/matmul-h200")
    assert any("records kernels only" in note for note in QUESTIONS["idle"].analyse(run, Scope(), None).notes)
    assert "Host gaps" not in all_advice(run)
    assert doctor(run, Scope()).title.endswith("Grade C")  # the first of 5 iterations compiles the kernels


def test_what_nsys_does_not_record_has_its_options(opened: OpenData) -> None:
    notes = " ".join(map(str, summary(opened("nsys/gpt-h200"), Scope()).notes))
    assert "nsys profile --cuda-memory-usage=true" in notes and "--profile-memory" not in notes
    assert "torch.compile" in all_advice(opened("nsys/gpt-h200"))  # kernels of torch


def test_calls_that_a_graph_captured_are_not_lost_launches(opened: OpenData) -> None:
    verdicts = {row["check"]: row["verdict"] for row in doctor(opened("graph-captured-h200"), Scope()).rows}
    assert verdicts["launches without their GPU event"] == "ok"


def test_advice_for_a_run_without_a_gpu(opened: OpenData) -> None:
    run = opened("checkpoint-cpu/plain.pt.trace.json.gz")
    assert not any(name for name in device_names(run, Scope()).values())
    with pytest.raises(UsageError, match="no meaning"):
        whatif(run, Scope(), [no_gaps()])
    assert all(row["what"] != "host gaps gone" for row in whatif(run, Scope()).rows)


def test_a_cut_file_is_no_run_on_cpus(tmp_path: Path) -> None:
    events = [slice_event(f"ProfilerStep#{n}", 100 * n, 90, cat="user_annotation") for n in range(2)]
    events += [slice_event("aten::mm", 100 * n + 10, 70) for n in range(2)]
    path = write_kineto(tmp_path / "rank-0.json", events)
    text = path.read_text()
    path.write_text(text[: text.rindex("aten::mm")])
    run = open_trace(path)
    about = subject(run, Scope(), summary(run, Scope()))
    assert "no GPU events in the cut file" in about and "threads" not in all_advice(run)


@pytest.mark.parametrize(
    ("times", "words"), [((10, 10, 10, 11), "10.0 ms:"), ((10, 10, 10, 30), "(median; 15.0 ms on average)")]
)
def test_the_first_line_has_median_and_mean_where_they_differ(
    times: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    events, at = [], 0
    for number, time in enumerate(times):
        events.append(slice_event(f"ProfilerStep#{number}", at, 1000 * time, cat="user_annotation"))
        events.append(slice_event("aten::mm", at, 500))
        at += 1000 * time
    title = summary(open_trace(write_kineto(tmp_path / "rank-0.json", events)), Scope()).title
    assert title.startswith("A step takes 10.0 ms") and words in title


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [("healthy-sharded", "FSDP", "bucket"), ("healthy-ddp", "bucket_cap_mb", "FSDP")],
)
def test_the_wrapper_decides_what_makes_messages_larger(
    opened: OpenData, name: str, has: str, lacks: str
) -> None:
    """FSDP2 has no buckets; DDP has no wrapped units."""
    run = opened(f"ordinary/{name}")
    for ways in (ways_to_overlap(run), larger_messages(run)):
        assert any(has in way for way in ways)
        assert not any(lacks in way for way in ways)
