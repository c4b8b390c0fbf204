"""The score of a tool's answers: what is right about one, and shares over many with their intervals.

Shares have Wilson's interval, F1 and the median error of the cost that of a bootstrap over the cases, both of 95 %.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rankscope.errors import ReadError

WHO = ("rank", "node", "stage", "nobody", "unknown")
CULPRITS = WHO[:3]
CAUSES = ("compute", "host", "copy", "dataloader", "link", "stages", "uneven", "memory", "hang", "none")
COST_TOLERANCE = 0.10
_Z = 1.959964
"""Of 95 %."""
_RESAMPLED = 400
_BANDS = ((0.0, 2.5), (2.5, 6.0), (6.0, 12.0), (12.0, 25.0), (25.0, math.inf))
"""Of the effect, in percent of the healthy step."""


class Share(NamedTuple):
    """A figure with its interval; `of` is how many it is a share of. None: there was nothing to count."""

    value: float | None
    low: float = 0.0
    high: float = 0.0
    of: int = 0


@dataclass(frozen=True)
class Marked:
    """A case with its truth, and what a tool says about it."""

    truth: Mapping[str, Any]
    who: str = "unknown"
    ranks: tuple[int, ...] = ()
    cause: str | None = None
    ms_per_step: float | None = None
    confidence: float | None = None

    @property
    def fault(self) -> str:
        return str(self.truth["fault"])

    @property
    def named(self) -> bool:
        return self.who in CULPRITS and bool(self.ranks)

    @property
    def has_culprit(self) -> bool:
        return self.truth["who"] in CULPRITS

    @property
    def hit(self) -> bool:
        """Exactly the culprit's ranks; of a slow link, ranks of one of its groups."""
        if not self.named:
            return False
        named, culprits = set(self.ranks), set(self.truth["ranks"])
        groups = self.truth.get("groups", [])
        return named == culprits or any(culprits <= named <= set(group) for group in groups)

    @property
    def cost_error(self) -> float | None:
        """Of a culprit that is right, over the true cost."""
        true_ms = self.truth["ms_per_step"]
        if not self.hit or self.ms_per_step is None or not true_ms:
            return None
        return abs(self.ms_per_step - float(true_ms)) / float(true_ms)


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ReadError(
            f"cannot read {path}", why=str(error), hint="Give a JSON file as docs/accuracy.md describes it."
        ) from error
    if not isinstance(content, dict):
        raise _wrong(path, "It is no object.")
    return content


def _wrong(path: Path, why: str) -> ReadError:
    return ReadError(
        f"{path} is not a submission",
        why=why,
        hint="submission.schema.json in the folder of the cases says what it has.",
    )


def marked(path: Path, truths: Sequence[Mapping[str, Any]]) -> tuple[str, list[Marked]]:
    """The name of a tool, and its answers beside the truth. Faults that are hidden are left out."""
    submission = read_json(path)
    answers, tool = submission.get("answers"), submission.get("tool")
    if not isinstance(answers, list) or not isinstance(tool, str):
        raise _wrong(path, 'It needs a text "tool" and a list "answers".')
    by_case: dict[str, dict[str, Any]] = {}
    names = {str(truth["case"]) for truth in truths}
    for answer in answers:
        problem = _problem(answer, names)
        if problem:
            raise _wrong(path, problem)
        by_case[answer["case"]] = answer
    listed = []
    for truth in truths:
        answer = by_case.get(str(truth["case"]), {})
        values = {key: answer.get(key) for key in ("cause", "ms_per_step", "confidence")}
        ranks = tuple(sorted(set(answer.get("ranks") or ())))
        if not truth["hidden"]:
            listed.append(Marked(truth, answer.get("who", "unknown"), ranks, **values))
    return tool, listed


def _problem(answer: Any, names: set[str]) -> str:
    """What is wrong with an answer; empty: nothing."""
    if not isinstance(answer, dict) or answer.get("case") not in names:
        return f"{json.dumps(answer)[:80]} names none of the cases."
    case, ranks = answer["case"], answer.get("ranks", [])
    if answer.get("who") not in WHO:
        return f"who of {case} is not one of {', '.join(WHO)}."
    if not isinstance(ranks, list) or not all(type(rank) is int and rank >= 0 for rank in ranks):
        return f"ranks of {case} is not a list of ranks."
    if answer.get("cause") not in (*CAUSES, None):
        return f"cause of {case} is not one of {', '.join(CAUSES)}."
    for key in ("ms_per_step", "confidence"):
        value = answer.get(key)
        if value is not None and (type(value) not in (int, float) or not 0 <= value < math.inf):
            return f"{key} of {case} is not a number of 0 or more."
    return ""


def wilson(right: int, count: int) -> Share:
    """A share with Wilson's score interval."""
    if not count:
        return Share(None)
    share, square = right / count, _Z * _Z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count * count)) / (1 + square / count)
    return Share(share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)), count)


def f1(answers: Sequence[Marked]) -> float | None:
    """The harmonic mean of precision and recall: 2 hits over those named and those to be named."""
    wanted = sum(answer.has_culprit for answer in answers)
    named = sum(answer.named for answer in answers)
    return 2 * sum(answer.hit for answer in answers) / (wanted + named) if wanted + named else None


def _median_error(answers: Sequence[Marked]) -> float | None:
    errors = [answer.cost_error for answer in answers if answer.cost_error is not None]
    return median(errors) if errors else None


def bootstrap(answers: Sequence[Marked], figure: Callable[[Sequence[Marked]], float | None]) -> Share:
    """A figure with the middle 95 % of what samples of the cases give, drawn with replacement."""
    value = figure(answers)
    if value is None:
        return Share(None)
    source = random.Random(0)
    drawn = [figure(source.choices(answers, k=len(answers))) for _ in range(_RESAMPLED)]
    values = sorted(each for each in drawn if each is not None)
    last = len(values) - 1
    return Share(value, values[round(0.025 * last)], values[round(0.975 * last)], len(answers))


def scores(answers: Sequence[Marked]) -> dict[str, Share]:
    """All figures of some cases."""
    culprits = [answer for answer in answers if answer.has_culprit]
    named = [answer for answer in answers if answer.named]
    hits = [answer for answer in culprits if answer.hit]
    healthy = [answer for answer in answers if answer.fault == "healthy"]
    uneven = [answer for answer in answers if answer.truth["cause"] == "uneven"]
    explained = [*hits, *(answer for answer in uneven if answer.who == "nobody")]
    gives_causes = any(answer.cause for answer in answers)
    right_causes = sum(answer.cause == answer.truth["cause"] for answer in explained)
    priced = [answer for answer in hits if answer.truth["ms_per_step"]]
    gives_costs = any(answer.ms_per_step is not None for answer in answers)
    close = sum(answer.cost_error is not None and answer.cost_error <= COST_TOLERANCE for answer in priced)
    return {
        "answered": wilson(sum(answer.who != "unknown" for answer in answers), len(answers)),
        "precision": wilson(sum(answer.hit for answer in named), len(named)),
        "recall": wilson(len(hits), len(culprits)),
        "f1": bootstrap(answers, f1),
        "cause": wilson(right_causes, len(explained)) if gives_causes else Share(None),
        "cost_within_10pct": wilson(close, len(priced)) if gives_costs else Share(None),
        "cost_error": bootstrap(answers, _median_error),
        "false_alarms": wilson(sum(answer.named for answer in healthy), len(healthy)),
        "uneven_blamed": wilson(sum(answer.named for answer in uneven), len(uneven)),
        "best_f1": Share(best_f1(answers)),
    }


def best_f1(answers: Sequence[Marked]) -> float | None:
    """F1 if answers below the best threshold of the tool's confidence named nobody; None without confidences."""
    limits = {answer.confidence for answer in answers if answer.confidence is not None}
    reached = []
    for limit in limits:
        sure = [
            answer
            if answer.confidence is not None and answer.confidence >= limit
            else replace(answer, who="nobody", ranks=())
            for answer in answers
        ]
        reached.append(f1(sure) or 0.0)
    return max(reached, default=None)


def parts(answers: Sequence[Marked]) -> dict[str, dict[str, list[Marked]]]:
    """The cases by effect, by layout, by fault and by size of the job; each table in its order."""
    tables: dict[str, dict[str, list[Marked]]] = {"effect": {}, "layout": {}, "fault": {}, "ranks": {}}
    for low, high in _BANDS:
        name = f"{low:g} to {high:g} %" if high < math.inf else f"{low:g} % or more"
        tables["effect"][name] = [
            answer for answer in answers if low <= (answer.truth["effect_pct"] or -1.0) < high
        ]
    keys: dict[str, Callable[[Marked], str]] = {
        "layout": lambda answer: layout_family(str(answer.truth["layout"])),
        "fault": lambda answer: answer.fault,
        "ranks": lambda answer: f"{answer.truth['ranks_of_job']:>3} ranks",
    }
    for table, key in keys.items():
        for name in sorted({key(answer) for answer in answers}):
            tables[table][name] = [answer for answer in answers if key(answer) == name]
    return tables


def layout_family(layout: str) -> str:
    """dp, tp, pp, ep or their mixture, with the schedule of a pipeline."""
    grid, _, schedule = layout.partition("-")
    return "".join(letter for letter in grid if not letter.isdigit()) + (f" {schedule}" if schedule else "")
