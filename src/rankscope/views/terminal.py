"""What a stream can show: its width, whether it takes colour; and the few colours there are."""

from __future__ import annotations

import os
from typing import TextIO

from rankscope.analysis.core.result import Severity

PIPED_WIDTH = 160
"""Width where the output is no terminal: a file or a pager has room, and names should not be cut to 80."""
_FALLBACK_WIDTH = 80

BOLD = "1"
DIM = "2"
SEVERITY_STYLES: dict[Severity, str] = {"ok": "32", "info": "36", "warning": "33", "critical": "1;31"}


def terminal_width(stream: TextIO) -> int:
    """Columns to write for `stream`: $COLUMNS, else the terminal's own, else PIPED_WIDTH."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isascii() and asked.isdigit() and int(asked) > 0:
        return int(asked)
    if not _is_terminal(stream):
        return PIPED_WIDTH
    try:
        # Some terminals (serial lines, a fresh pty) say 0.
        return os.get_terminal_size(stream.fileno()).columns or _FALLBACK_WIDTH
    except (OSError, ValueError):
        return _FALLBACK_WIDTH


def use_color(stream: TextIO) -> bool:
    """Never with NO_COLOR (no-color.org) or TERM=dumb; else on a terminal, or with FORCE_COLOR."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or _is_terminal(stream)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # already closed
        return False


def paint(text: str, style: str, color: bool) -> str:
    """`text` in an ANSI style, or as it is."""
    return f"\x1b[{style}m{text}\x1b[0m" if color and text else text
