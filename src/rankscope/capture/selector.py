"""Which ranks: ``0,8-15``, ``local:0``, ``node:0-1``, ``local:0@nodes:0-1``, ``local:0@ranks:0-7``, ``all``; ``auto``
by the job's size."""

from __future__ import annotations

from typing import NamedTuple

from rankscope.capture.rank import Identity
from rankscope.errors import CaptureError, UsageError
from rankscope.ranges import Ranges, parse_ranges

FORMS = "0,8-15 | local:0 | node:0-1 | local:0@nodes:0-1 | local:0@ranks:0-7 | all"
AUTO = "auto"
"""Every rank of a job of at most AUTO_ALL ranks, else the first rank of each node."""
AUTO_ALL = 16


class RankSelector(NamedTuple):
    """A parsed selector. ``field`` is the field of an Identity that ``ranges`` apply to; ``also`` is another with its
    own, after an @."""

    text: str
    field: str
    ranges: Ranges = ()
    also: tuple[str, Ranges] | None = None

    def selects(self, identity: Identity) -> bool:
        """Whether this rank is selected; raises CaptureError when its launcher does not set the field."""
        if self.field == "all":
            return True
        if self.field == AUTO:
            return _automatic(identity)
        if not _within(self.ranges, _fact(identity, self.field, self.text)):
            return False
        return self.also is None or _within(self.also[1], _fact(identity, self.also[0], self.text))

    def matching(self, identity: Identity) -> list[int] | None:
        """The ranks of the job that match, as far as one rank knows; they are taken to fill node after node."""
        world, local = identity.world_size, identity.local_size
        if world is None or (local is None and self.field not in ("all", "rank") and world > AUTO_ALL):
            return None
        local = local or world
        ranks = (Identity(rank, rank % local, world, local, rank // local, "") for rank in range(world))
        return [each.rank for each in ranks if self.selects(each)]

    def leads(self, identity: Identity) -> bool:
        """Whether this rank speaks for the others: the first that is selected."""
        if self.field == "rank" and self.also is None:
            return identity.rank == min(self.ranges)[0]
        return identity.rank == next(iter(self.matching(identity) or ()), 0)

    def matches_none(self, identity: Identity) -> bool:
        """Whether no rank of the job can match, as far as one rank knows the job's size."""
        world, local = identity.world_size, identity.local_size
        sizes = {"rank": world, "local_rank": local, "node": -(-world // local) if world and local else None}
        wanted = [(self.field, self.ranges)] if self.field not in ("all", AUTO) else []
        wanted += [self.also] if self.also is not None else []
        for field, ranges in wanted:
            size = sizes[field]
            if size is not None and all(low >= size for low, _ in ranges):
                return True
        return False


def parse_selector(text: str) -> RankSelector:
    """A selector from the command line."""
    body = text.strip()
    if body in ("all", AUTO):
        return RankSelector(body, body)
    head, _, rest = body.partition("@")
    also = _second_part(rest, text) if "@" in body else None
    kind, colon, values = head.partition(":")
    if not colon:
        return RankSelector(body, "rank", _ranges(head, text), also)
    if kind == "local":
        return RankSelector(body, "local_rank", _ranges(values, text), also)
    if kind in ("node", "nodes") and also is None:
        return RankSelector(body, "node", _ranges(values, text))
    raise _bad(text, f"'{head}' is not a form of selection.")


def _automatic(identity: Identity) -> bool:
    """A small job is recorded whole, because stragglers show only beside the other ranks."""
    if identity.world_size is not None and identity.world_size <= AUTO_ALL:
        return True
    local_rank = identity.local_rank
    return identity.rank == 0 if local_rank is None else local_rank == 0


def _second_part(part: str, text: str) -> tuple[str, Ranges]:
    kind, colon, values = part.partition(":")
    if not colon or kind not in ("node", "nodes", "rank", "ranks"):
        raise _bad(text, "After @ come nodes or ranks, as in local:0@nodes:0-1.")
    return kind.removesuffix("s"), _ranges(values, text)


def _ranges(values: str, text: str) -> Ranges:
    try:
        return parse_ranges(values)
    except ValueError as error:
        raise _bad(text, str(error)) from None


def _bad(text: str, why: str) -> UsageError:
    return UsageError(
        f"--ranks {text} is not a selection of ranks", why=why, hint=f"Write it as one of: {FORMS}."
    )


def _within(ranges: Ranges, value: int) -> bool:
    return any(low <= value <= high for low, high in ranges)


def _fact(identity: Identity, field: str, text: str) -> int:
    value: int | None = getattr(identity, field)
    if value is None:
        words = field.replace("_", " ")
        option = "--node-rank" if field == "node" else f"--{field.replace('_', '-')}"
        raise CaptureError(
            f"--ranks {text} needs the {words}, and {identity.source} does not set it",
            why=f"This is rank {identity.rank} of {identity.source}, which sets no variable for the {words}.",
            hint=f"Select by rank (--ranks 0), or give it: --rank N {option} N (N may be %q{{VARIABLE}}).",
        )
    return value
