"""Values of untrusted files: what is of another type than expected is none."""

from __future__ import annotations

import json
from typing import Any

LONGEST_TEXT = 2000


def integer(value: Any) -> int | None:
    """A whole number of 64 bits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def text(value: Any) -> str | None:
    """Shortened to LONGEST_TEXT characters."""
    return value[:LONGEST_TEXT] if isinstance(value, str) else None


def as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def json_object(content: str | bytes | None) -> dict[str, Any]:
    """The JSON object in a text; {} if there is none."""
    try:
        return as_object(json.loads(content)) if content else {}
    except (ValueError, RecursionError):
        return {}
