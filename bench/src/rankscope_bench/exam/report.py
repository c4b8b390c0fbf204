"""Writes the generated sections of docs/accuracy.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rankscope_bench.blame.case_set import CAUSES
from rankscope_bench.exam.random_jobs import Mark, figures
from rankscope_bench.exam.score import (
    BALANCE_TOLERANCE,
    COST_TOLERANCE,
    FIRST_FROM_PCT,
    FLOOR,
    FROM_PCT,
    Answer,
    scores,
    text,
    total,
)

PAGE = Path(__file__).parents[4] / "docs" / "accuracy.md"
_BANDS = ((0.5, 1.5), (1.5, 2.5), (2.5, 4.5), (4.5, 8.5), (8.5, 12.5), (12.5, 25.0), (25.0, 101.0))
_LINES = {
    "precision": "precision of the culprit (rank, node or stage), cases without one included",
    "recall": "recall: of the culprits, those that are named, at any severity",
    "cause": "cause class of the culprits that are named",
    "false_alarms": "healthy runs with a fault of warning or above",
    "named_healthy": "healthy runs in which a fault below that names a rank, node or stage",
    "cost": f"cost by whatif within {100 * COST_TOLERANCE:.0f} % of the truth",
    "stated": "the same for the cost that the finding states, after what other findings claim",
    "first": f"first finding right (effects above {FIRST_FROM_PCT:g} %)",
    "other": "bad overlap, missing fusion, hang: first finding right; memory leak: a warning",
    "moving": "imbalance that moves: nobody is blamed",
    "balance": f"slowdown and balanced times within {100 * BALANCE_TOLERANCE:.0f} % of the simulation",
}
_COLUMNS = ("cases", "precision", "recall", "cause", "cost", "first")


def write_accuracy(answers: Sequence[Answer], real: Sequence[Answer], chance: Sequence[Mark] = ()) -> None:
    write_section("the exam", section(answers, real, chance))


def write_section(name: str, text: str) -> None:
    """The lines between the two comments of this section."""
    pattern = re.compile(
        rf"(<!-- results of {re.escape(name)}: .*? -->\n).*?(<!-- end of results -->)", re.DOTALL
    )
    page, count = pattern.subn(lambda found: f"{found[1]}{text}{found[2]}", PAGE.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{PAGE.name} has {count} sections 'results of {name}', not one")
    PAGE.write_text(page, encoding="utf-8")


def section(answers: Sequence[Answer], real: Sequence[Answer], chance: Sequence[Mark] = ()) -> str:
    """The scores of the exam."""
    healthy = [one for one in answers if one.kind == "healthy"]
    parts_of_exam = [answers, *([one for one in answers if one.held_out == held] for held in (False, True))]
    found = [total(part) for part in parts_of_exam]
    lines = "\n".join(
        f"| {line} | {' | '.join(text(part[name]) for part in found)} | {FLOOR.get(name, '-')} |"
        for name, line in _LINES.items()
    )
    parts = [
        f"""{len(answers)} simulated jobs of 4 to 64 ranks, {len(healthy)} of them healthy;
{len(real)} jobs of real gloo processes.

| for effects of {FROM_PCT:g} % of the step or more | all | tuned | held out | floor |
|---|---|---|---|---|
{lines}

By effect, the share of the step that the fault costs:

{_table("effect", [(f"{low:g} to {min(high, 100):g} %", scores(answers, low, high)) for low, high in _BANDS])}
By fault, effects of {FROM_PCT:g} % or more:

{_by(answers, lambda one: one.kind, tuple(CAUSES))}
By layout (dp: data parallel, tp: tensor parallel, pp: pipeline stages), effects of {FROM_PCT:g} % or more:

{_by(answers, lambda one: one.layout)}
"""
    ]
    if real:
        calm = [one for one in real if one.kind == "healthy"]
        parts.append(
            f"""Real processes over gloo; the scores change with the load of the machine:

{_table("processes", [(name, scores(_of_layout(real, name), 0.5)) for name in sorted({one.layout for one in real})])}
Healthy runs with a false alarm: {sum(bool(one.alarms) for one in calm)} of {len(calm)}.

"""
        )
    if chance:
        parts.append(
            f"""{len(chance)} random jobs (`rankscope bench exam --random {len(chance)}`):

| | |
|---|---|
"""
            + "".join(f"| {name} | {value} |\n" for name, value in figures(chance))
            + "\n"
        )
    wrong = [
        one
        for one in (*answers, *real)
        if one.wrong and not one.held_out and (one.effect_pct >= FROM_PCT or not one.effect_pct)
    ]
    parts.append("What is wrong, of the tuned cases:\n\n")
    if wrong:
        parts.append("| case | effect | culprit | answer |\n|---|---|---|---|\n")
        parts += [
            f"| {one.name} | {one.effect_pct:.1f} % | {', '.join(map(str, one.culprits)) or '-'} | {one.wrong} |\n"
            for one in wrong
        ]
    else:
        parts.append(f"No tuned case with an effect of {FROM_PCT:g} % or more, and no healthy one.\n")
    return "".join(parts)


def _of_layout(answers: Sequence[Answer], name: str) -> list[Answer]:
    return [one for one in answers if one.layout == name]


def _by(answers: Sequence[Answer], key: Callable[[Answer], str], order: Sequence[str] = ()) -> str:
    inside = [one for one in answers if one.has_culprit and one.effect_pct >= FROM_PCT]
    names = [name for name in order if any(key(one) == name for one in inside)] or sorted(
        {key(one) for one in inside}
    )
    rows = [(name, scores([one for one in inside if key(one) == name], FROM_PCT)) for name in names]
    return _table("", rows)


def _table(title: str, rows: Sequence[tuple[str, dict[str, float | None]]]) -> str:
    lines = [f"| {title} | {' | '.join(_COLUMNS)} |", "|---" * (len(_COLUMNS) + 1) + "|"]
    for name, found in rows:
        cells = [f"{found['cases']:.0f}", *(text(found[column]) for column in _COLUMNS[1:])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
