"""What a trace contains whose events have no known category: threads, ranges, the longest names."""

from __future__ import annotations

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.slice_counts import slice_counts
from rankscope.model import KNOWN_CATEGORIES
from rankscope.records import dataclass
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

MOSTLY_UNDERSTOOD_PCT = 90
"""Of the events: below this share the figures are in doubt. Chosen, not measured."""
_MOST_NAMES = 3
_MOST_CATEGORIES = 4
_LONGEST_NAME = 60
_UNKNOWN = f"category NOT IN ({sql_texts(KNOWN_CATEGORIES)})"


@dataclass(frozen=True)
class Understood:
    """How many of the events with a duration have a category that means something here."""

    events: int
    in_classes: int
    unknown: tuple[tuple[str, int], ...]
    """The categories without a meaning ('' for none) and their events, the most frequent first."""

    @property
    def pct(self) -> float:
        return 100 * self.in_classes / self.events if self.events else 100.0

    @property
    def categories(self) -> str:
        """'12 events of category "task", 3 without a category'."""
        shown = [
            f'{count:,} of category "{category}"' if category else f"{count:,} without a category"
            for category, count in self.unknown[:_MOST_CATEGORIES]
        ]
        return ", ".join(shown) + (", …" if len(self.unknown) > _MOST_CATEGORIES else "")


def understood(run: Run, scope: Scope) -> Understood:
    """Over the ranks in scope, whole files."""
    return _understood(run, scope.only_ranks())


@once_per_run
def _understood(run: Run, scope: Scope) -> Understood:
    counts = slice_counts(run, scope)
    unknown = tuple(
        (category, count) for category, count in counts.items() if category not in KNOWN_CATEGORIES
    )
    events = sum(counts.values())
    return Understood(events, events - sum(count for _, count in unknown), unknown)


def contents(run: Run, scope: Scope) -> str:
    """'2 threads, 3,400 ranges in 1.2 s; longest: load 12 ms, …' of a run without ops and GPU events, or ''.

    `longest` is by self time: a range around everything would hide what is inside it.
    """
    ((tracks, ranges, time),) = run.rows(f"""
        WITH files AS (
            SELECT rank, count(DISTINCT track) AS tracks, count(*) AS ranges,
                   max(start_ns + greatest(dur_ns, 0)) - min(start_ns) AS time
            FROM slices WHERE category <> 'Trace' AND {scope.where()} GROUP BY rank, segment
        ), ranks AS (SELECT sum(tracks) AS tracks, sum(ranges) AS ranges, sum(time) AS time FROM files GROUP BY rank)
        SELECT sum(tracks)::BIGINT, sum(ranges)::BIGINT, max(time)::BIGINT FROM ranks
    """)
    if not ranges:
        return ""
    named = run.rows(
        "SELECT name, sum(self_ns) AS time, count(*) FROM slices "
        f"WHERE category <> 'Trace' AND {scope.where()} GROUP BY name ORDER BY 2 DESC, 1 LIMIT {_MOST_NAMES}"
    )
    longest = ", ".join(
        f"{name[:_LONGEST_NAME] or '(no name)'} {format_rounded('ns', time)}"
        + (f" in {count:,} ranges" if count > 1 else "")
        for name, time, count in named
    )
    duration = format_rounded("ns", time)
    return (
        f"{tracks:,} thread{'s' * (tracks != 1)}, {ranges:,} range{'s' * (ranges != 1)} in {duration}; "
        f"longest: {longest}"
    )
