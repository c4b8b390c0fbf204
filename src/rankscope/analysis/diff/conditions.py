"""In what else two runs differ: software, hardware, the command, what was recorded, the shapes of the inputs."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator

from rankscope.analysis.core.result import Fact, Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.compare import Comparison
from rankscope.analysis.diff.samples import SHAPES
from rankscope.analysis.run_info import facts
from rankscope.text.names import shorten_name
from rankscope.timeline.run import Run
from rankscope.units import shorten_middle

_COMPARED = {"Software": None, "Hardware": ("GPU",), "Recorded": ("With",)}
"""By topic of run_info, the labels; None: all."""
_VALUE_CELLS = 48
_MOST = 6
_ABSENT = "not there"


def different_conditions(base: Run, new: Run, scope: Scope, comparison: Comparison) -> Iterator[Finding]:
    """One finding that names them; none where they are the same, or nothing was recorded about them."""
    before, after = (_recorded(run, scope) for run in (base, new))
    pairs = [
        (label, before[label], after[label])
        for label in before
        if label in after and label != "Command" and before[label] != after[label]
    ]
    if "Command" in before and "Command" in after:
        pairs += _options(before["Command"], after["Command"])
    pairs += _shapes(comparison)
    if not pairs:
        return
    listed = [
        f"{label} ({' -> '.join(shorten_middle(value, _VALUE_CELLS) for value in values)})"
        for label, *values in pairs[:_MOST]
    ]
    words, more = " and ".join(filter(None, (", ".join(listed[:-1]), listed[-1]))), len(pairs) - len(listed)
    yield Finding(
        "info",
        f"The runs also differ in {words}{f', and {more} more' if more else ''}",
        advice="What these change cannot be told apart from a change of the program.",
        facts=tuple(
            Fact(label, value, "", side)
            for label, *values in pairs
            for side, value in zip(("base", "new"), values, strict=True)
        ),
    )


def _recorded(run: Run, scope: Scope) -> dict[str, str]:
    """By label, what is known of a run."""
    topics = facts(run, scope.in_run(run))
    values = {
        {"With": "what was recorded"}.get(label, label): value
        for topic, labels in _COMPARED.items()
        for label, value in topics.get(topic, ())
        if labels is None or label in labels
    }
    return values | {label: value for label, value in topics.get("Run", ()) if label == "Command"}


def _options(before: str, after: str) -> list[tuple[str, str, str]]:
    """The options and other words of the command that differ."""
    old, now = (_words(command) for command in (before, after))
    names = [name for name in {**old, **now} if old.get(name) != now.get(name)]
    return [(name, old.get(name, _ABSENT), now.get(name, _ABSENT)) for name in names]


def _words(command: str) -> dict[str, str]:
    """By option its value; words without an option by their number."""
    words: dict[str, str] = {}
    option = ""
    for word in _split(command):
        if word.startswith("-"):
            option, _, value = word.partition("=")
            words[option] = value
        elif option and not words[option]:
            words[option] = word
        else:
            words[f"word {len(words) + 1} of the command"] = word
    return {name: value or "given" for name, value in words.items()}


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _shapes(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Of the op that takes most time among those whose shapes all changed, the largest before and now."""
    by_op: dict[str, dict[str, list[tuple[float, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in comparison.rows:
        op, bracket, shapes = row["key"].partition(SHAPES)
        if row["report"] == "ops" and bracket:
            by_op[op][row["verdict"]].append((row["base"] or row["new"], f"[[{shapes}"))
    changed = {op: rows for op, rows in by_op.items() if set(rows) == {"new", "gone"}}
    if not changed:
        return []
    op = max(changed, key=lambda op: max(changed[op]["gone"]))
    others = f" and {len(changed) - 1} more ops" if len(changed) > 1 else ""
    return [
        (
            f"the shapes of {shorten_name(op, _VALUE_CELLS)}{others}",
            max(changed[op]["gone"])[1],
            max(changed[op]["new"])[1],
        )
    ]
