"""The size of the code: what is counted, and that more than size.json allows is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from code_figures import main, size

MODULE = '''"""Three words here."""


def first(a: int) -> str:  # a comment is nothing
    if a > 1 and a < 3 or not a:
        return f"{a:>{a + 1}} of two"
    return "".join(str(b) for b in range(a))


class Second:
    assert True
'''
FIGURES = {"tokens": 47, "statements": 7, "branches": 5, "definitions": 2, "words": 6}


def test_the_figures_of_a_module() -> None:
    """Two branches are and/or, three are if, for and assert."""
    assert size(MODULE) == FIGURES
    laid_out_otherwise = MODULE.replace("(a)", "(\n    a\n)").replace("# a comment is nothing", "")
    assert size(laid_out_otherwise) == FIGURES


def test_a_package_that_has_grown_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package, allowed = tmp_path / "package", tmp_path / "size.json"
    packages = (package, tmp_path / "apart")
    (tmp_path / "apart" / "views").mkdir(parents=True)
    for name in ("main.py", "views/module.py"):
        (tmp_path / "apart" / name).write_text("a = 1\n")
    for folder in ("views", "analysis/memory"):
        (package / folder).mkdir(parents=True)
        (package / folder / "module.py").write_text(MODULE)
    (package / "errors.py").write_text("")
    assert main(["--write"], packages, allowed) == 0
    written = json.loads(allowed.read_text())
    assert [*written] == [".", "analysis", "analysis/memory", "apart", "views"]
    assert written["apart"]["tokens"] == 6
    assert written["analysis"] == written["analysis/memory"] == FIGURES
    assert main(["--check"], packages, allowed) == 0

    (package / "views" / "module.py").write_text(MODULE.replace("Three words", "Four words stand"))
    (package / "analysis" / "memory" / "module.py").write_text("")
    (package / "new").mkdir()
    (package / "new" / "module.py").write_text("a = 1\n")
    capsys.readouterr()
    assert main(["--check"], packages, allowed) == 1
    assert capsys.readouterr().out.splitlines()[1:-1] == [
        "  new: 3 tokens, allowed are 0",
        "  new: 1 statements, allowed are 0",
        "  views: 7 words, allowed are 6",
    ]
