"""The width and colour support of an output stream, and the ANSI styles in use."""

from __future__ import annotations

import os
from typing import TextIO

from rankscope.analysis.core.result import Severity

PIPED_WIDTH = 160
"""Width if the output is not a terminal: files and pagers have room, so names are not cut to 80 columns."""
_FALLBACK_WIDTH = 80

BOLD = "1"
DIM = "2"
SEVERITY_STYLES: dict[Severity, str] = {
    "ok": "32",
    "limit": "36",
    "info": "36",
    "warning": "33",
    "critical": "1;31",
}


def terminal_width(stream: TextIO) -> int:
    """The width of `stream`: $COLUMNS, else that of the terminal, else PIPED_WIDTH."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isascii() and asked.isdigit() and int(asked) > 0:
        return int(asked)
    if not _is_terminal(stream):
        return PIPED_WIDTH
    try:
        # Some terminals (serial lines, a new pty) report 0.
        return os.get_terminal_size(stream.fileno()).columns or _FALLBACK_WIDTH
    except (OSError, ValueError):
        return _FALLBACK_WIDTH


def use_color(stream: TextIO) -> bool:
    """Not with NO_COLOR (no-color.org) or TERM=dumb; otherwise on a terminal, or with FORCE_COLOR."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or _is_terminal(stream)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # already closed
        return False


def paint(text: str, style: str, color: bool) -> str:
    """`text` in an ANSI style if `color`, else unchanged."""
    return f"\x1b[{style}m{text}\x1b[0m" if color and style and text else text
