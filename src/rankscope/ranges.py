"""Lists of numbers as text: '0,8-15'. Without imports, because every rank of a captured job loads it."""

from __future__ import annotations

Ranges = tuple[tuple[int, int], ...]


def parse_ranges(text: str) -> Ranges:
    """'0,8-15' as ((0, 0), (8, 15)); ValueError if it is malformed."""
    ranges = []
    for item in text.split(","):
        low, dash, high = item.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ValueError(f"'{item}' is not a number or a range.")
        first, last = int(low), int(high) if dash else int(low)
        if last < first:
            raise ValueError(f"The range {item} ends before it begins.")
        ranges.append((first, last))
    return tuple(ranges)


def numbers_in(ranges: Ranges) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def as_ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as '0-2,5'; the numbers must be sorted."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in parts)


def rank_words(ranks: list[int] | tuple[int, ...] | set[int] | frozenset[int]) -> str:
    """'rank 3', 'ranks 0-2,5'."""
    return f"rank{'s' * (len(ranks) > 1)} {as_ranges(sorted(ranks))}"


def role_words(roles: dict[int, str]) -> str:
    """The ranks of each role: 'actor 0-3, rollout 4-7'."""
    of_role: dict[str, list[int]] = {}
    for rank, role in sorted(roles.items()):
        of_role.setdefault(role or "other", []).append(rank)
    return ", ".join(f"{role} {as_ranges(ranks)}" for role, ranks in of_role.items())
