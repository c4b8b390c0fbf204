"""Where device activity comes from, as SQL: its op, module or line of Python, also of CUDA graphs and compiled code."""

from __future__ import annotations

from rankscope.model import ORIGINS
from rankscope.timeline.run import Run

NODE = "'graph replay, node ' || o.node"
"""SQL of what is said about a node of a graph whose origin is not known; `o` is its row of origins."""
_OF_ORIGIN = {"op": "o.op", "module": "o.module", "source": "o.line"}
_OF_LAUNCH = {"op": "g.op_name", "module": "m.name", "source": "g.line"}
ORIGIN_KEYS = {
    "op": "ProfilerActivity.CPU records ops",
    "module": "with_stack=True records modules",
    "source": "with_stack=True records lines of Python",
}
"""What device activity can be split by, and the option that records each."""
SAME = "o.rank = g.rank AND o.segment = g.segment AND o.id = g.id"


def origin_of(run: Run, by: str) -> tuple[str, str]:
    """SQL of the key `by` for rows of gpu, called `g`, and of the joins that it needs.

    The line that replays a graph is not where its kernels come from: they have the origin of their capture, or the
    number of their node. Kernels of compiled code without a line or module have the compiled function.
    """
    joins = ""
    launch = _OF_LAUNCH[by]
    if by == "module":
        frames = "(SELECT rank, segment, id, name FROM slices WHERE category = 'python_function')"
        joins = f"LEFT JOIN {frames} m ON m.rank = g.rank AND m.segment = g.segment AND m.id = g.module"
    if not run.has(ORIGINS):
        return launch, joins
    own = _OF_ORIGIN[by]
    key = (
        f"CASE WHEN o.node IS NOT NULL THEN coalesce({own}, {NODE}) "
        f"ELSE coalesce({own}, {launch}, 'compiled ' || o.compiled) END"
    )
    return key, f"{joins} LEFT JOIN origins o ON {SAME}"
