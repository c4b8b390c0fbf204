"""Where a page of the viewer is: the part of its address that holds its state (static/js/state.js)."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from rankscope.errors import UsageError

_LINK = re.compile(r"#v=1(?:&[a-z]+=[\w.,:%+*-]*)*")
_LONGEST = 2000


def checked_link(link: str) -> str:
    """The link, if it can be part of the viewer's address."""
    if len(link) > _LONGEST or not _LINK.fullmatch(link):
        raise UsageError(
            f"'{link[:80]}' is not a place in the viewer",
            why="It begins with #v=1, as the end of the address of its page does.",
            hint="Findings have one in their JSON: link.",
        )
    return link


@dataclass(frozen=True)
class Place:
    """The place that pages were last moved to."""

    number: int = 0
    """Counts the moves: a page follows those that come after it was opened."""
    link: str = ""

    def moved(self, link: str) -> Place:
        return Place(self.number + 1, checked_link(link))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
