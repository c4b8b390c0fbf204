"""The six properties of findings, for any run: what one of them breaks, as a sentence that begins with its number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from rankscope.analysis import REPORTS
from rankscope.analysis.core.advice import framework, has_fused_optimizer
from rankscope.analysis.core.ceilings import ceilings, device_names
from rankscope.analysis.core.device_events import has_gpu, has_launches
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.result import Fact, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import run_step_times
from rankscope.analysis.core.words import value_text
from rankscope.analysis.findings import collect
from rankscope.analysis.summary import subject, summary
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run
from rankscope.units import format_ns, format_rounded

NEVER: dict[str, str] = {
    "without GPU": r"CUDA|--no-gaps|torch\.compile(?! takes| a step)|nvidia-smi|GPU of|ahead of the GPU"
    r"|host-bound|pin_memory|--peak|MFU",
    "without launches": r"queued|host-bound|launch calls|ahead of the GPU|launch latency|torch\.compile|CUDA graphs",
    "without steps": r"per step|of a [\d.]+ .?s step|A step takes|\bsteps \d",
    "jax": r"torch|DataLoader|ProfilerStep|--record-shapes|--profile-memory|--with-stack|\.item\(\)|foreach|/device:",
    "triton": r"torch\.|DataLoader|ProfilerStep|--record-shapes|--profile-memory|--with-stack|\.item\(\)|foreach",
    "nsys": r"ProfilerStep|ProfilerActivity|needs --record-shapes|--profile-memory|record_shapes=True",
    "known peak": r"known device|peak of the device",
    "fused optimizer": r"fused=True",
    "no pageable copies": r"Pin the memory|pinned memory with",
    "no synchronising call": r"\.item\(\)|Read results later",
    "no DDP": r"bucket_cap_mb|DDP buckets",
    "GPU not idle": r"ahead of the GPU",
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
_SAME = 1.02
_FIGURE = re.compile(r"(?<![\w.,])([\d,]+(?:\.\d+)?) (ns|µs|ms|s|%|B|kB|MB|GB|GB/s|MHz)(?![\w/])")


def violations(run: Run, never: Mapping[str, str] = NEVER, opposites: Pairs = OPPOSITES) -> list[str]:
    """Of all findings of a run and of its summary."""
    scope = Scope().in_run(run)
    shown = summary(run, Scope())
    found = collect(run, Scope())
    steps = run_step_times(run, scope)
    wrong = [
        *_costs(found, shown.facts["mean_step_ns"], max(steps.values(), default=None)),
        *_causes(run, scope),
        *(text for each in found for text in (*_evidence(run, scope, each), *_figures(each))),
        *_said_in_vain(run, shown, never),
        *_contradictions(run, shown, opposites),
    ]
    return list(dict.fromkeys(wrong))


def _costs(found: tuple[Finding, ...], step: float | None, longest: float | None) -> Iterator[str]:
    """1. Costs add up to at most the mean step; a cost above what it would save alone says so."""
    costs = [each.cost_ns for each in found if each.cost_ns is not None]
    if step is not None and sum(costs) > step + len(costs):
        yield f"1. costs of {sum(costs)} ns in a step of {step:.0f}"
    for each in found:
        cost, alone = each.cost_ns, each.alone_ns
        if cost is not None and cost < 0:
            yield f"1. a negative cost: {each.title}"
        if each.kind == "limit" and cost is not None and alone is not None and cost > alone:
            yield f"1. a limit that claims more than it saves alone: {each.title}"
        if cost and alone and cost > _SAME * alone and "alone it would save" not in each.evidence:
            yield f"1. nothing says what it saves alone: {each.title}"
        for fact in each.facts:
            if (
                longest
                and _is_per_step(fact)
                and float(fact.value or 0) > _SAME * longest
                and each.kind != "health"
            ):
                yield f"1. more than a step has: {fact.quantity} {fact.value} of {longest}, {each.title}"


def _is_per_step(fact: Fact) -> bool:
    return fact.unit == "ns" and isinstance(fact.value, (int, float)) and "per step" in fact.subject


def _causes(run: Run, scope: Scope) -> Iterator[str]:
    """2. Names that are given explain half of what the subject costs, unless all of its work is slower."""
    for row in REPORTS["faults"].analyse(run, scope, None).rows:
        named = row["names"] and row["how"] != "moves" and not str(row["how"]).startswith("slower")
        if named and row["margin_ns"] and row["explained_ns"] < row["margin_ns"] / 2:
            yield f"2. {row['names']} explain {row['explained_ns']} of {row['margin_ns']} ns of {row['subject']}"


def _evidence(run: Run, scope: Scope, finding: Finding) -> Iterator[str]:
    """3. The rows, names and times that a finding cites exist, on its ranks, with the figure that it states."""
    for fact in finding.facts:
        report = REPORTS.get(fact.report)
        if fact.row and report is not None:
            rows = [
                row
                for by in (None, *(key for key in report.keys if key in fact.row))
                for row in report.analyse(run, scope, by).rows
                if all(row.get(key) == value for key, value in fact.row.items())
            ]
            values = [row[fact.quantity] for row in rows if fact.quantity in row]
            if not rows:
                yield f"3. no row of {fact.report} is {dict(fact.row)}: {finding.title}"
            elif fact.quantity != "cause" and len(values) == 1 and not _is_same(values[0], fact.value):
                yield f"3. {fact.quantity} is {values[0]} in {fact.report}, not {fact.value}: {finding.title}"
        if not fact.window or not fact.report:
            yield f"3. a fact without its report or window: {fact.quantity}, {finding.title}"
        if set(fact.ranks) - set(run.ranks):
            yield f"3. ranks that are not in the run: {fact.ranks}, {finding.title}"
        if fact.quantity in ("kernel", "op") and fact.value not in all_names(run) and fact.value != "copy":
            yield f"3. no {fact.quantity} is called {fact.value}: {finding.title}"
    if finding.span and finding.span[0] > finding.span[1]:
        yield f"3. a span that ends before it begins: {finding.title}"
    names = [fact.value for fact in finding.facts if fact.quantity == "kernel"]
    if finding.kind == "fault" and len(finding.ranks) == 1 and names:
        ((calls,),) = run.rows(
            f"SELECT count(*) FROM gpu WHERE rank = {finding.ranks[0]} AND name IN ({sql_texts(map(str, names))})"
        )
        if not calls:
            yield f"3. rank {finding.ranks[0]} runs no {names}: {finding.title}"


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) <= 1e-6 * max(abs(one), abs(other))
    return bool(one == other)


def _figures(finding: Finding) -> Iterator[str]:
    """4. Every figure of a title is a fact; shares are between 0 and 100 %."""
    known = {value_text(fact.quantity, fact.value, fact.unit) for fact in finding.facts}
    known |= {str(fact.value) for fact in finding.facts}
    for cost in (finding.cost_ns, finding.alone_ns):
        if cost is not None:
            known |= {format_ns(cost, 1), format_rounded("ns", cost)}
    for share in (finding.cost_pct, *(fact.value for fact in finding.facts if fact.unit == "percent")):
        if isinstance(share, (int, float)):
            known.add(f"{share:.0f} %")
            if not 0 <= share <= 100.0001:
                yield f"4. a share of {share} %: {finding.title}"
    for number, unit in _FIGURE.findall(finding.title):
        if f"{number} {unit}" not in known and not any(f"{number} {unit}" in each for each in known):
            yield f"4. {number} {unit} is no fact: {finding.title}"
    if len(finding.lines) > 5:
        yield f"4. more than five facts: {finding.title}"


def situation(run: Run, result: Result) -> list[str]:
    """The keys of NEVER that apply."""
    gpu, names = has_gpu(run, Scope()), all_names(run)
    holds = {
        "without GPU": not gpu,
        "without launches": gpu and not has_launches(run),
        "without steps": not result.facts["steps"],
        "known peak": any(ceiling.peaks for ceiling in ceilings(run, Scope()).values()),
        "fused optimizer": has_fused_optimizer(run),
        "no pageable copies": gpu and not any("pageable" in name.lower() for name in names),
        "no synchronising call": not any(re.search("Synchronize|Memcpy", name) for name in names),
        "no DDP": not any(name.startswith("DistributedDataParallel") for name in names),
        "GPU not idle": gpu and not result.facts["idle_pct"],
        framework(run): True,
    }
    return [name for name, applies in holds.items() if applies]


def statements(run: Run, result: Result) -> Iterator[str]:
    """What the page says: the first line, who it is about, findings with their facts and advice, notes."""
    yield result.facts["verdict"]
    yield result.title
    yield subject(run, Scope(), result)
    for finding in result.findings:
        yield f"{finding.title}\n{finding.hint}"
        yield finding.evidence
    yield from map(str, result.notes)


def _said_in_vain(run: Run, result: Result, never: Mapping[str, str]) -> Iterator[str]:
    """5. Advice, and all else, only where its precondition holds."""
    for key in situation(run, result):
        for text in statements(run, result) if key in never else ():
            if match := re.search(never[key], text):
                yield f"5. {key}: {match[0]!r} in {text!r}"


def _contradictions(run: Run, result: Result, opposites: Pairs) -> Iterator[str]:
    """6. Two findings do not contradict each other, nor the table of their report."""
    for one, other in combinations(statements(run, result), 2):
        for left, right in opposites:
            for first, second in ((one, other), (other, one)):
                if re.search(left, first) and re.search(right, second):
                    yield f"6. {first!r} beside {second!r}"
    for name in device_names(run, Scope()).values():
        if name[:1] == "/":
            yield f"6. the name of a device: {name}"
    faults = [each for each in result.findings if each.kind == "fault"]
    for finding in result.findings:
        if 1 < len(finding.ranks) == len(run.ranks) and re.search(r"\b[Rr]ank \d", finding.headline):
            yield f"6. one of several ranks named: {finding.title}"
    rows = REPORTS["faults"].analyse(run, Scope(), None).rows
    if bool(rows) != bool(faults):
        yield f"6. {len(rows)} rows of faults, and {len(faults)} findings"
    for name in {each.report for each in result.findings} & {*REPORTS}:
        shown = [each for each in REPORTS[name].analyse(run, Scope(), None).findings if each.severity != "ok"]
        if shown != [each for each in result.findings if each.report == name]:
            yield f"6. {name} has other findings than the list of all"
    order = [
        (each.kind == "limit", bool(each.cost_ns) or each.severity != "critical", -(each.cost_ns or 0))
        for each in result.findings
    ]
    if order != sorted(order):
        yield "6. the findings are not in the order of their costs"
