"""Why the subject of a fault is late, in words and figures."""

from __future__ import annotations

from rankscope.analysis.core.result import Fact
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.faults import Fault, Subject
from rankscope.records import dataclass
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class Why:
    """The cause of one subject's delay."""

    text: str
    """What follows 'rank 2 costs 10.6 ms per step; ': a clause without the subject's name."""
    evidence: tuple[str, ...] = ()
    hint: str = ""
    facts: tuple[Fact, ...] = ()
    names: tuple[str, ...] = ()
    """Names out of the trace in these texts that no fact holds."""
    report: str = ""
    """Where its cause can be seen in detail."""


def why(run: Run, scope: Scope, fault: Fault, subject: Subject) -> Why:
    cause = subject.cause
    how = f"{cause.how} x{cause.factor:.2f}" if cause.factor else cause.how
    names = ", ".join(cause.names)
    return Why(f"{cause.kind}, {how}" + (f": {names}" if names else ""), names=cause.names)
