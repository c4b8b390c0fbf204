"""The arguments of the scripts of this package, `python -m rankscope_bench....`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rankscope.cli.options import add_options


def parsed(doc: str | None, options: str, argv: Sequence[str] | None, **settings: Any) -> argparse.Namespace:
    """Of a script that the first line of its docstring describes. Settings are add_options'; a number is a default."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    numbers = {
        name: {"type": type(value), "default": value}
        for name, value in settings.items()
        if isinstance(value, int)
    }
    add_options(parser, options, **settings | numbers)
    return parser.parse_args(argv)
