"""Tables that charts draw as cells: rank by step, rank by rank, and how far apart ranks arrive.

Of more than MOST_ROWS ranks, those of a node or neighbours share a row. Figures agree with `stragglers` and
`collectives`, which these charts stand beside.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.analysis.across_ranks.heatmap import buckets
from rankscope.analysis.across_ranks.time_split import own_times
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.faults.stragglers import caused_waits, causes_of_ranks
from rankscope.collective_kinds import KINDS, bus_factor
from rankscope.store.arrays import NONE, Floats, Ints, number_rows, unique_values
from rankscope.timeline.run import Run

MOST_ROWS = 64
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Who sends to whom depends on the root, which traces do not have."""
_BINS_PER_DECADE = 4
_LEAST_SKEW_NS = 1000.0
"""The first bin of the histogram has all that is below: ranks arrive together."""


class _Rows:
    """The rows of the ranks in scope: their labels, and the row of each rank."""

    def __init__(self, run: Run, ranks: Sequence[int]) -> None:
        named = {str(rank): [rank] for rank in ranks}
        if len(ranks) > MOST_ROWS:
            named = {label.removeprefix("ranks "): of for label, of in buckets(run, ranks, MOST_ROWS).items()}
        self.labels = list(named)
        self._row_of = np.full(max(run.ranks, default=0) + 1, NONE)
        for number, members in enumerate(named.values()):
            self._row_of[members] = number

    def of(self, ranks: Ints | Sequence[int]) -> Ints:
        """NONE for a rank out of scope."""
        rows: Ints = self._row_of[np.asarray(ranks, dtype=np.int64)]
        return rows

    def matrix(self, senders: Ints, receivers: Ints, amounts: Floats | Ints) -> Floats:
        """The sums by row of the first and row of the second."""
        total = np.zeros((len(self.labels), len(self.labels)))
        rows, columns = self.of(senders), self.of(receivers)
        inside = (rows != NONE) & (columns != NONE)
        np.add.at(total, (rows[inside], columns[inside]), amounts[inside])
        return total

    def result(
        self,
        name: str,
        title: str,
        window: str,
        columns: tuple[Column, Column, Column],
        values: Floats,
        note: str,
    ) -> Result:
        """The cells that are not 0, one row each; `note` says what they are, or why there are none."""
        first, second, measure = (column.name for column in columns)
        rows = [
            {first: self.labels[a], second: self.labels[b], measure: round(float(values[a, b]))}
            for a, b in np.argwhere(values).tolist()
        ]
        return Result(name, title, window, columns, rows, notes=(note,), facts={"labels": self.labels})


def lateness_by_step(run: Run, scope: Scope) -> Result:
    """How much longer than its peers each rank takes in each step, without waiting; of a shared row the latest rank."""
    columns = (
        Column("rank"),
        Column("step"),
        Column("excess_ns", "ns", "how much longer than its peers it took, without waiting"),
    )
    title = "How late each rank is, step by step"
    own = own_times(run, Scope(steps=scope.steps))
    if own.steps in ((), (None,)):
        reason = ("it takes two or more ranks with common steps",)
        return Result("lateness", title, scope.window, columns, [], notes=reason)
    chosen = [number for number, rank in enumerate(own.ranks) if scope.has_rank(rank)]
    shown = _Rows(run, [own.ranks[number] for number in chosen])
    latest = np.zeros((len(shown.labels), len(own.steps)))
    np.maximum.at(latest, shown.of([own.ranks[number] for number in chosen]), own.excess[chosen])
    rows = [
        {"rank": label, "step": step, "excess_ns": round(excess)}
        for label, of_row in zip(shown.labels, latest.tolist(), strict=True)
        for step, excess in zip(own.steps, of_row, strict=True)
    ]
    named = unique_values(shown.of(sorted(causes_of_ranks(run, scope))))
    facts = {
        "mean_step_ns": mean_step_ns(run, Scope(steps=scope.steps)),
        "late": [shown.labels[row] for row in named.tolist() if row != NONE],
    }
    return Result("lateness", title, scope.window, columns, rows, facts=facts)


def who_waited(run: Run, scope: Scope) -> Result:
    """Which rank waited for which: a column adds up to `caused_wait_ns` of `stragglers`."""
    caused = caused_waits(run, scope)
    shown = _Rows(run, scope.ranks_in(run))
    columns = (
        Column("rank"),
        Column("waited_for"),
        Column("wait_ns", "ns", "at most the time by which the other one was slower than its peers"),
    )
    values = shown.matrix(caused.groups[:, 2], caused.groups[:, 1], caused.waited)
    note = (
        "chains of waits are followed" if values.any() else "no rank is known to have waited for another one"
    )
    return shown.result("waits", "Who waited for whom", scope.window, columns, values, note)


def traffic(run: Run, scope: Scope) -> Result:
    """Bytes from rank to rank. Those of a collective are its bus bytes, evenly spread over the peers of its group."""
    entries = run.collectives
    entries = entries.pick(scope.mask(entries.step))
    shown = _Rows(run, scope.ranks_in(run))
    sized = entries.bytes[entries.sends] > 0
    sends, recvs = entries.sends[sized], entries.recvs[sized]
    messages = np.bincount(sends, minlength=len(entries.rank))  # a kernel may have several
    values = shown.matrix(entries.rank[sends], entries.rank[recvs], entries.bytes[sends] / messages[sends])
    wide = np.flatnonzero(~entries.point_to_point)
    keys, key = number_rows(
        [entries.group[wide], entries.kind[wide], entries.bytes[wide], entries.rank[wide]]
    )
    left_out = 0
    for (group, kind, size, rank), count in zip(keys.tolist(), np.bincount(key).tolist(), strict=True):
        members = entries.groups[group].ranks or ()
        peers = np.array([peer for peer in members if peer != rank], dtype=np.int64)
        factor = None if KINDS[kind] in _ROOTED else bus_factor(KINDS[kind], len(members) or 1)
        if size <= 0 or len(peers) == 0 or not factor:
            left_out += count
            continue
        peers = peers[np.isin(peers, run.ranks)]
        each = count * size * factor / (len(members) - 1)
        values += shown.matrix(np.full(len(peers), rank), peers, np.full(len(peers), each))
    columns = (Column("sender"), Column("receiver"), Column("bytes", "bytes", "in the window"))
    note = "collectives: bus bytes, evenly spread over the group; the links used depend on the algorithm"
    note = note if values.any() else "no message or collective has a known size and known ranks"
    note += f"; {left_out:,} calls have no known size, ranks or root" * bool(left_out)
    return shown.result("traffic", "Bytes between ranks", scope.window, columns, values, note)


def arrival_skew(run: Run, scope: Scope) -> Result:
    """How far apart the first and the last rank arrive at a collective: how many do so, and who is last."""
    all_waits = waits(run, scope)
    entries = all_waits.rows
    skew = np.zeros(len(all_waits.last), dtype=np.int64)
    met = np.flatnonzero((entries.match != NONE) & (all_waits.wait != NONE))
    np.maximum.at(skew, entries.match[met], all_waits.wait[met])
    used = np.flatnonzero((all_waits.transfer != NONE) & (all_waits.ranks > 1))
    skew, last = skew[used], all_waits.last[used]
    last_rank = np.where(last == NONE, NONE, entries.rank[last]) if len(last) else last
    decade = np.log10(np.maximum(skew, _LEAST_SKEW_NS / 2) / _LEAST_SKEW_NS)
    bins, number = number_rows(
        [np.maximum(np.floor(decade * _BINS_PER_DECADE), -1).astype(np.int64), last_rank]
    )
    rows = [
        {
            "low_ns": round(_LEAST_SKEW_NS * 10 ** (at / _BINS_PER_DECADE)) if at >= 0 else 0,
            "high_ns": round(_LEAST_SKEW_NS * 10 ** ((at + 1) / _BINS_PER_DECADE)),
            "last_rank": None if rank == NONE else rank,
            "count": count,
            "skew_ns": int(total),
        }
        for (at, rank), count, total in zip(
            bins.tolist(),
            np.bincount(number).tolist(),
            np.bincount(number, weights=skew).tolist(),
            strict=True,
        )
    ]
    columns = (
        Column("low_ns", "ns"),
        Column("high_ns", "ns"),
        Column("last_rank", help="the rank that arrived last; of ranks that arrived together the lowest"),
        Column("count", "count", "collectives, sends and receives with a skew in this range"),
        Column("skew_ns", "ns", "their skew together: from the first arrival to the last"),
    )
    notes = () if rows else ("no collective of two or more ranks was matched",)
    return Result("arrivals", "How far apart ranks arrive", scope.window, columns, rows, notes=notes)
