"""Which arguments of Kineto's events get columns of their own, and in which events."""

from __future__ import annotations

from rankscope.model import CATEGORY_ALIASES

TYPED_ARGS = {
    "correlation": "BIGINT",
    "External id": "BIGINT",
    "device": "BIGINT",
    "stream": "BIGINT",
    "bytes": "BIGINT",
    "Collective name": "VARCHAR",
}
"""And their SQL types."""

# For the DuckDB reader parsing arguments costs up to a third of the time, so it is limited to categories that need it.
# Ops and annotations, the bulk of a trace, need only the External id, which torch writes first.
WITHOUT_TYPED_ARGS = ("cpu_op", "user_annotation", "python_function", "cpu_instant_event", "ac2g", "fwdbwd")
WITH_TYPED_ARGS = "record_param_comms"
"""The name of an op that has them whatever its category is."""

OP_CATEGORIES = ("cpu_op", *(old for old, new in CATEGORY_ALIASES.items() if new == "cpu_op"))
