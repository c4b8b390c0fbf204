"""Two lists: what is wrong, and limits, in every view."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.cli.common import exit_code
from rankscope.text.run_words import RunWords
from rankscope.views import render
from rankscope.views.html import html
from rankscope.views.report.content import saving
from rankscope.views.summary import Screen, screen

FAULT = Finding(
    "critical", "Rank 2 costs 10.6 ms per step", ranks=(2,), advice="Look at it.",
    facts=(Fact("example", "It computes longer."),),
    cost_ns=10_600_000, report="faults", subject="rank 2",
)  # fmt: skip


def limit(title: str, cost_ns: int, share: float, **more: object) -> Finding:
    facts = (Fact("kernels", 1234, "count", "all ranks"),)
    return Finding(
        "limit", title, advice="Its hint.", cost_ns=cost_ns, cost_pct=share, facts=facts, **more  # type: ignore[arg-type]
    )  # fmt: skip


LIMITS = (
    limit("Data loading", 8_000_000, 28.7, report="dataloader"),
    limit("Communication", 310_000, 2.1, report="overlap"),
)
VERDICT = "No fault found: the 4 ranks are alike."


def shown(*findings: Finding, width: int = 80) -> str:
    columns = (Column("rank"), Column("steps", "count"), Column("step_ns", "ns"))
    rows = [{"rank": rank, "steps": 6, "step_ns": 27_900_000} for rank in range(4)]
    summary = Result(
        "summary",
        "A step takes 27.9 ms",
        "steps 0:5",
        columns,
        rows,
        findings,
        facts={"verdict": VERDICT, "mean_step_ns": 27_900_000},
    )
    return screen(
        Screen(RunWords(("RUN",)), "4 ranks", summary, replace(summary, rows=()), findings),
        width,
        color=False,
    )


def test_limits_stand_below_the_faults_with_one_line_each() -> None:
    text = shown(FAULT, *LIMITS)
    assert text.startswith(f"{VERDICT}\nA step takes 27.9 ms.\n")
    assert (
        "1. critical: rank 2 (rankscope help uneven-work)\n   example: It computes longer.\n"
        "   → Look at it.\n\n" in text
    )
    assert (
        "\n\nLimits, at most per step (rankscope help data-loading):\n   8.0 ms  29 %  data loading\n"
        "   0.3 ms   2 %  communication\n\n" in text
    )
    assert "1,234" not in text and "Its hint" not in text
    assert text.count("rankscope whatif RUN") == 1


def test_a_page_is_named_once() -> None:
    loads = replace(FAULT, facts=(Fact("cause", "dataloader", row={"axis": "rank"}),))
    text = shown(loads, *LIMITS)
    assert text.count("rankscope help data-loading") == text.count("rankscope help communication") == 1


def test_a_run_without_faults_has_neither_list_nor_whatif() -> None:
    text = shown()
    assert "Limits" not in text and "whatif" not in text and "-r findings" not in text
    text = shown(*LIMITS)
    assert "Limits" in text and "whatif" not in text and "-r findings" in text


@pytest.mark.parametrize(
    ("title", "names", "name"),
    [
        ("Host gaps", (), "host gaps"),
        ("GPU clocks", (), "GPU clocks"),
        ("H2D copies", (), "H2D copies"),
        ("Kernel_of_mine is slow", ("Kernel_of_mine",), "Kernel_of_mine is slow"),
    ],
)
def test_names_and_acronyms_keep_their_capital(title: str, names: tuple[str, ...], name: str) -> None:
    assert f"  9 %  {name}\n" in shown(limit(title, 1_000, 9.0, names=names))


def test_tables_say_what_a_limit_saves_with_its_evidence() -> None:
    result = Result("idle", "Idle", "", (), [], (FAULT, *LIMITS))
    text = render(result, "table", 80)
    assert "limit: Data loading: up to 8.0 ms (29 %)\n  kernels: 1,234, all ranks\n  → Its hint.\n" in text
    assert "→ Look at it.\n\nlimit: " in text, "the lists are apart"
    assert "critical: Rank 2 costs 10.6 ms per step\n" in text
    assert "- **limit**: Data loading: up to 8.0 ms (29 %)" in render(result, "markdown")
    assert "<b>limit</b>: Data loading: up to 8.0 ms (29 %)" in html(result)


def test_only_limits_are_written_up_to() -> None:
    assert saving(FAULT, 27_900_000) == "saves 10.6 of 27.9 ms a step"
    assert saving(LIMITS[0], 27_900_000) == "saves up to 8.0 of 27.9 ms a step"


@pytest.mark.parametrize("fail_on", ["info", "warning", "critical"])
def test_a_limit_fails_no_gate(fail_on: str) -> None:
    result = Result("findings", "What was found", "", (), [], LIMITS)
    assert exit_code(fail_on, [result], [result]) == 0
    assert exit_code(fail_on, [replace(result, findings=(*LIMITS, FAULT))]) == 3
