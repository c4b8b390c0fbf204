"""Values of Python, numpy and DuckDB as the types of JSON; lists in the arguments of events."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """`value` converted to JSON types. NaN and infinity become None."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Decimal):
        if not value.is_finite():
            return None
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's scalars and arrays, without importing numpy
        return plain(value.tolist())
    return str(value)


def listed(text: str | None) -> list[Any]:
    """The list that an event's argument holds as text; empty for anything else, which only a hostile trace has."""
    try:
        value = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []
