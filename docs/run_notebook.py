"""Runs a notebook's cells and stores what they show, with nothing but Python: no kernel, no Jupyter.

A cell's last expression is shown as Jupyter shows it: as HTML or SVG where it has a form for it, and as text.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any


def executed(path: Path) -> str:
    """The notebook's text with the outputs its cells have now; it is run in its own folder."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    with contextlib.chdir(path.parent) if hasattr(contextlib, "chdir") else _inside(path.parent):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                cell["execution_count"] = count
                cell["outputs"] = run_cell("".join(cell["source"]), names, count)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def run_cell(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What the cell printed, then what its last expression is."""
    body = ast.parse(source)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(body, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        for kind, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
            if hasattr(value, method):
                data = {kind: _lines(getattr(value, method)()), **data}
        outputs.append(
            {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


@contextlib.contextmanager
def _inside(folder: Path) -> Any:  # contextlib.chdir came with Python 3.11
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
