"""When a command of a script runs: on which ranks, and under which other conditions."""

from __future__ import annotations

from typing import NamedTuple

MOST_RANKS = 20_000


class Guard(NamedTuple):
    """When a command runs: on these ranks, by field of an Identity, and if these conditions hold."""

    ranks: dict[str, frozenset[int]] = {}  # noqa: RUF012  (never changed)
    unknown: tuple[str, ...] = ()
    never: bool = False

    @property
    def always(self) -> bool:
        return not (self.ranks or self.unknown or self.never)


ALWAYS, NEVER = Guard(), Guard(never=True)
EVERY = frozenset(range(MOST_RANKS))


def both(first: Guard, second: Guard) -> Guard:
    if first.never or second.never:
        return NEVER
    ranks = dict(first.ranks)
    for field, numbers in second.ranks.items():
        ranks[field] = ranks.get(field, EVERY) & numbers
    if not all(ranks.values()):
        return NEVER
    return Guard(ranks, tuple(dict.fromkeys((*first.unknown, *second.unknown))))


def either(first: Guard, second: Guard) -> Guard:
    if first.never or second.never:
        return first if second.never else second
    if first.always or second.always:
        return ALWAYS
    if (
        not (first.unknown or second.unknown)
        and len(first.ranks) == 1
        and first.ranks.keys() == second.ranks.keys()
    ):
        return Guard({field: numbers | second.ranks[field] for field, numbers in first.ranks.items()})
    return Guard(unknown=(f"{_text(first)} || {_text(second)}",))


def implies(first: Guard, second: Guard) -> bool:
    """Whether the second holds wherever the first does."""
    same = set(second.unknown) <= set(first.unknown)
    return same and all(first.ranks.get(field, EVERY) <= numbers for field, numbers in second.ranks.items())


def opposite(guard: Guard) -> Guard:
    if guard.never or guard.always:
        return ALWAYS if guard.never else NEVER
    if not guard.unknown and len(guard.ranks) == 1:
        [(field, numbers)] = guard.ranks.items()
        return Guard({field: EVERY - numbers}) if numbers != EVERY else NEVER
    return Guard(unknown=(f"not ({_text(guard)})",))


def _text(guard: Guard) -> str:
    return " && ".join([*(f"{field} selected" for field in guard.ranks), *guard.unknown]) or "true"
