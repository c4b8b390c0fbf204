"""rankscope bench blame: the cases, their truth, and the score of answers."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from rankscope.cli import main as run_cli
from rankscope.errors import ReadError, StoreError
from rankscope_bench.blame import make as making
from rankscope_bench.blame import score as scoring
from rankscope_bench.blame.ask import ask_baseline
from rankscope_bench.blame.ask import main as ask_main
from rankscope_bench.blame.cases import LAYOUTS, Case, cases
from rankscope_bench.blame.make import make
from rankscope_bench.blame.planting import job_of
from rankscope_bench.blame.record import step_times_ms
from rankscope_bench.blame.score import CAUSES, WHO, Marked, best_f1, f1, marked, scores, wilson
from rankscope_bench.synthetic.job import Job

SHA256 = "9f599bd6b7d3312081ed3775dba4db385b080bff18196bc9c94ab641dcbe1691"
"""Of `tiny` on any machine: of the uncompressed bytes."""
SCHEMA = json.loads(Path(making.__file__).with_name("submission.schema.json").read_text())


def tiny(seed: int = 5, size: str = "small") -> list[Case]:
    """A straggler, a healthy job with recorded allocations, and a hang; two ranks and steps each."""
    job = Job(data=2, steps=2, layers=1, kernels=1, measured=True, node_clocks=True, seed=seed)
    return [
        Case("case-001", "host", "dp2", 50.0, 0, job),
        Case("case-002", "healthy", "dp2", 0.0, 0, replace(job, records_memory=True)),
        Case("case-003", "hang", "dp2", 0.0, 0, job),
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(making, "cases", tiny)
    make(5, "small", tmp_path / "set", tmp_path / "set-truth" / "truth.json", 1, lambda line: None)
    return tmp_path / "set"


def truths(folder: Path) -> list[dict[str, Any]]:
    document = json.loads((folder.with_name("set-truth") / "truth.json").read_text())
    return list(document["cases"])


def test_a_full_set_has_every_fault_effect_and_layout() -> None:
    listed = cases(1, "full")
    assert len(listed) == 200 and len({case.name for case in listed}) == 200
    counts = Counter(case.kind for case in listed)
    assert counts["healthy"] == 40 and len(counts) == 18 and min(counts.values()) >= 4
    assert {case.layout for case in listed} <= set(LAYOUTS)
    ranks = [case.job.ranks for case in listed]
    assert min(ranks) == 4 and max(ranks) == 256
    sized = [case.share_pct for case in listed if case.kind == "compute"]
    assert min(sized) < 1.1 and max(sized) == 50.0  # a step of twice the time
    kinds = [case.kind for case in listed]
    assert kinds != sorted(kinds), "the order tells the fault"
    assert cases(1, "full") == listed and cases(2, "full") != listed


def test_what_a_fault_needs_is_also_in_healthy_jobs() -> None:
    """Experts, jobs that are limited by the host, allocations and small nodes do not give a fault away."""
    healthy = [case.job for seed in range(2) for case in cases(seed, "full") if case.kind == "healthy"]
    assert any(job.expert_ns for job in healthy) and any(job.records_memory for job in healthy)
    assert any(job.ranks_per_node == 4 for job in healthy) and any(job.stages > 1 for job in healthy)
    assert any(job.forward_ns < 100_000 for job in healthy)


def test_the_same_seed_gives_the_same_bytes_on_every_machine(folder: Path) -> None:
    listed = json.loads((folder / "cases.json").read_text())
    assert listed["sha256"] == SHA256
    assert "seed" not in listed and "seed" in json.loads(
        (folder.with_name("set-truth") / "truth.json").read_text()
    )


def test_the_truth_can_be_written_later(folder: Path, tmp_path: Path) -> None:
    later = make(5, "small", None, tmp_path / "later.json", 1, lambda line: None)
    assert json.loads((tmp_path / "later.json").read_text())["cases"] == truths(folder)
    assert later == json.loads((folder / "cases.json").read_text())


def test_nothing_in_the_folder_tells_the_answer(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        *("case-001", "case-002", "case-003", "cases.json", "task.md", "submission.schema.json")
    }
    traces = [gzip.decompress(path.read_bytes()).decode() for path in folder.rglob("*.json.gz")]
    assert len(traces) == 4
    for text in traces:
        assert not any(word in text for word in ("extra", "planted", "slow", "healthy", "synthetic"))
        assert (
            text.count('"baseTimeNanoseconds": 1790857026000000000') == 1
        )  # as torch writes it on every rank
    assert list((folder / "case-003").glob("nccl_trace_rank_*"))


def test_the_truth_has_culprit_cause_and_cost(folder: Path) -> None:
    host, healthy, hang = truths(folder)
    assert (host["who"], host["cause"], len(host["ranks"])) == ("rank", "host", 1)
    assert host["effect_pct"] == pytest.approx(100, rel=0.15) and not host["hidden"]
    assert host["ms_per_step"] == pytest.approx(host["step_ms"] / 2, rel=0.15)
    assert (healthy["who"], healthy["ranks"], healthy["cause"]) == ("nobody", [], "none")
    assert (hang["cause"], hang["ms_per_step"]) == ("hang", None)


def test_a_folder_with_files_is_not_written_into(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not empty"):
        make(5, "small", folder, tmp_path / "x.json", 1, lambda line: None)


def perfect(truth: dict[str, Any]) -> dict[str, Any]:
    return {key: truth[key] for key in ("case", "who", "ranks", "cause", "ms_per_step")}


def submission(path: Path, answers: Sequence[dict[str, Any]]) -> Path:
    document = {"tool": path.stem, "answers": list(answers)}
    jsonschema.validate(document, SCHEMA)
    path.write_text(json.dumps(document))
    return path


def test_answers_are_scored_from_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = submission(tmp_path / "right.json", [perfect(truth) for truth in truths(folder)])
    silent = submission(tmp_path / "silent.json", [])
    assert run_cli(["bench", "blame", "score", str(folder), str(right), str(silent), "--format", "json"]) == 0
    tools = json.loads(capsys.readouterr().out)["tools"]
    assert [tools["right"][name][0] for name in ("answered", "precision", "recall", "f1", "cause")] == [
        1.0
    ] * 5
    assert tools["right"]["cost_error"][0] == 0.0 and tools["right"]["false_alarms"][0] == 0.0
    assert tools["silent"]["answered"][0] == 0.0 and tools["silent"]["recall"][0] == 0.0
    assert tools["silent"]["precision"][0] is None
    assert run_cli(["bench", "blame", "score", str(folder), str(right)]) == 0
    assert "1.00 (0.34-1.00)" in capsys.readouterr().out  # Wilson's interval of 2 of 2


def test_the_truth_of_another_set_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"sha256": "0", "cases": []}))
    right = submission(tmp_path / "right.json", [])
    assert run_cli(["bench", "blame", "score", str(folder), str(right), "--truth", str(other)]) == 2
    assert "checksum" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [
        {"case": "case-009", "who": "nobody"},
        {"case": "case-001", "who": "somebody"},
        {"case": "case-001", "who": "rank", "ranks": ["3"]},
        {"case": "case-001", "who": "rank", "ranks": [1], "cause": "bad luck"},
        {"case": "case-001", "who": "rank", "ranks": [1], "ms_per_step": "3 ms"},
        {"case": "case-001", "who": "rank", "ranks": [True]},
        "case-001",
    ],
)
def test_an_answer_of_another_form_is_refused(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"tool": "x", "answers": [answer]}))
    with pytest.raises(ReadError) as error:
        marked(path, [{"case": "case-001", "hidden": False}])
    assert error.value.why and error.value.hint


TRUTHS: list[dict[str, Any]] = [
    {"fault": "host", "who": "rank", "ranks": [1], "cause": "host", "ms_per_step": 2.0, "effect_pct": 20.0},
    {
        "fault": "node",
        "who": "node",
        "ranks": [2, 3],
        "cause": "compute",
        "ms_per_step": 1.0,
        "effect_pct": 7.0,
    },
    {
        "fault": "healthy",
        "who": "nobody",
        "ranks": [],
        "cause": "none",
        "ms_per_step": None,
        "effect_pct": None,
    },
    {
        "fault": "lengths",
        "who": "nobody",
        "ranks": [],
        "cause": "uneven",
        "ms_per_step": 1.0,
        "effect_pct": 9.0,
    },
]
answered = st.builds(
    Marked,
    st.sampled_from(TRUTHS),
    st.sampled_from(WHO),
    st.lists(st.integers(0, 3), unique=True, max_size=2).map(lambda ranks: tuple(sorted(ranks))),
    st.sampled_from(CAUSES),
    st.none() | st.floats(0, 5),
    st.none() | st.floats(0, 1),
)


@settings(max_examples=examples(80))
@given(st.lists(answered, min_size=1, max_size=12))
def test_scores_are_those_of_counting(answers: list[Marked]) -> None:
    culprits = [answer for answer in answers if answer.truth["who"] != "nobody"]
    named = [answer for answer in answers if answer.who in ("rank", "node", "stage") and answer.ranks]
    hits = [answer for answer in named if list(answer.ranks) == answer.truth["ranks"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_RESAMPLED", 10)
        result = scores(answers)
    assert result["precision"].value == (len(hits) / len(named) if named else None)
    assert result["recall"].value == (len(hits) / len(culprits) if culprits else None)
    if hits:
        precision, recall = len(hits) / len(named), len(hits) / len(culprits)
        assert (
            f1(answers) == result["f1"].value == pytest.approx(2 * precision * recall / (precision + recall))
        )
    best = best_f1(answers)
    assert best is None or 0 <= best <= 1
    for name in ("answered", "precision", "recall", "cause", "cost_within_10pct", "false_alarms"):
        share = result[name]
        assert share.value is None or 0 <= share.low <= share.value <= share.high <= 1


@given(st.integers(1, 400), st.floats(0, 1))
def test_wilsons_interval_solves_its_equation(count: int, part: float) -> None:
    """At its ends, the share is 1.96 standard errors of the end away."""
    share = wilson(round(part * count), count)
    assert share.value is not None
    for end in (share.low, share.high):
        if 0 < end < 1:
            assert abs(share.value - end) == pytest.approx(
                1.959964 * (end * (1 - end) / count) ** 0.5, abs=1e-9
            )


def test_of_a_slow_link_a_group_of_the_rank_may_be_named() -> None:
    truth = {**TRUTHS[0], "fault": "link", "cause": "link", "groups": [[0, 1], [1, 3]]}
    named = [(1,), (0, 1), (1, 3), (0, 3), (1, 2), (0, 1, 3)]
    assert [Marked(truth, "rank", ranks).hit for ranks in named] == [True, True, True, False, False, False]


def test_hidden_faults_are_not_counted(tmp_path: Path) -> None:
    path = submission(tmp_path / "tool.json", [{"case": "a", "who": "rank", "ranks": [0]}])
    listed = [{**TRUTHS[0], "case": "a", "hidden": True}, {**TRUTHS[2], "case": "b", "hidden": False}]
    _, answers = marked(path, listed)
    assert [answer.truth["case"] for answer in answers] == ["b"] and answers[0].who == "unknown"


def test_the_baseline_names_the_rank_that_waits_least(folder: Path) -> None:
    host, *_ = truths(folder)
    answer = ask_baseline(folder / "case-001")
    assert answer["ranks"] == host["ranks"]
    assert answer["ms_per_step"] == pytest.approx(host["ms_per_step"], rel=1.0)
    assert ask_baseline(folder / "case-003") == {"who": "unknown"}


def test_cases_are_asked_about_side_by_side_and_once(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "baseline.json"
    ask_main(["baseline", str(folder), "-o", str(output), "--only", "case-002"])
    ask_main(["baseline", str(folder), "-o", str(output), "--jobs", "3"])
    submission = json.loads(output.read_text())
    assert [answer["case"] for answer in submission["answers"]] == ["case-002", "case-001", "case-003"]
    for answer in submission["answers"]:
        assert answer == {"case": answer["case"], **ask_baseline(folder / answer["case"])}


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("dp8tp4", Job(data=8, tensor=4)),
        ("tp4-batched", Job(data=1, tensor=4)),
        ("ep16", Job(data=16, expert_ns=600_000, data_wait_ns=100_000)),
        ("pp4", Job(data=1, stages=4)),
        ("pp2dp4-1f1b", Job(data=4, stages=2, schedule="1f1b", micro_batches=8)),
        (
            "pp8dp2tp2-interleaved-batched",
            Job(data=2, tensor=2, stages=8, schedule="interleaved", chunks=2, micro_batches=8, p2p="batched"),
        ),
    ],
)
def test_the_name_of_a_layout_says_its_job(name: str, job: Job) -> None:
    assert job_of(name) == job


def test_the_step_of_a_recorded_case_is_that_of_the_host() -> None:
    step = {"cat": "user_annotation", "name": "ProfilerStep#3", "dur": 2500.0}
    events: list[dict[str, Any]] = [
        {"ph": "M"},
        step,
        step | {"cat": "gpu_user_annotation", "dur": 3.0},
        step | {"name": "other"},
    ]
    assert step_times_ms(events) == [2.5]
