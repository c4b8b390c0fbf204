"""The size and the shape of the code, counted the same way each time.

    python benchmarks/code_figures.py            its size by package
    python benchmarks/code_figures.py --check    fails where a package has more than size.json says; part of make lint
    python benchmarks/code_figures.py --write    writes size.json: what is larger there afterwards was decided
    python benchmarks/code_figures.py --shape    its shape; -v: and what the figures are made of

Size: tokens (names, operators, numbers, strings), statements, branches (also of comprehensions, handlers, asserts and
each further operand of and/or), definitions (functions and classes), and words in docstrings and other texts. How the
code is laid out changes none of them.

Shape: lines of Python in src, and how many of them are code (no docstring, comment or blank line); modules that one
other module imports; variables whose names say nothing; functions over complexity 20; and calls
from one module to another while `open_run` opens a run that was read before and gives its first table: the functions
that each module calls in others, constructors of records left out and properties counted apart.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PACKAGES = (SRC / "rankscope", ROOT / "bench" / "src" / "rankscope_bench")
"""Of each distribution."""
SIZES = ROOT / "size.json"
FIGURES = ("tokens", "statements", "branches", "definitions", "words")
COMPLEXITY = 20
PROPERTY = " (property)"
TRACE = ROOT / "tests" / "data" / "ddp-gloo4"
EMPTY_NAMES = ("found", "one", "place", "own", "known", "made", "kept")
_NO_CODE = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
)  # fmt: skip


_TOKENS = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
_PARTED = {
    getattr(tokenize, f"{kind}STRING_{end}", None): step
    for kind in "FT"
    for end, step in (("START", 1), ("END", -1))
}
"""An f-string is several tokens from Python 3.12 on."""
_BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.comprehension, ast.While, ast.ExceptHandler, ast.match_case,
    ast.Assert,
)  # fmt: skip
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Sizes = dict[str, dict[str, int]]
"""By package, the five figures."""


def size(text: str) -> Counter[str]:
    """The five figures of a module."""
    figures, inside = Counter[str](), 0
    counted = {*_TOKENS, *_PARTED}
    for kind, *_ in tokenize.generate_tokens(io.StringIO(text).readline):
        if kind in counted:
            figures["tokens"] += not inside
            inside += _PARTED.get(kind, 0)
    nodes = list(ast.walk(ast.parse(text)))
    kinds = Counter(map(type, nodes))
    for name, wanted in (("statements", ast.stmt), ("branches", _BRANCHES), ("definitions", _DEFINITIONS)):
        figures[name] = sum(count for kind, count in kinds.items() if issubclass(kind, wanted))
    figures["branches"] += sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant))
    figures["words"] = sum(len(text.split()) for text in texts if isinstance(text, str))
    return figures


def sizes(first: Path, *others: Path) -> Sizes:
    """Of each package in the first, of the sub-packages of analysis too; "." are its modules. The others as a whole."""
    counts: dict[str, Counter[str]] = {}
    paths = [(package, path) for package in (first, *others) for path in package.rglob("*.py")]
    for package, path in paths:
        figures, folders = size(path.read_text()), path.relative_to(package).parts[:-1]
        names = {folders[0] if folders else "."} if package == first else {package.name}
        if package == first and folders[:1] == ("analysis",):
            names.add("/".join(folders[:2]))
        for name in names:
            counts.setdefault(name, Counter()).update(figures)
    return {name: {figure: counts[name][figure] for figure in FIGURES} for name in sorted(counts)}


def grown(allowed: Sizes, now: Sizes) -> list[str]:
    """What is more than is allowed, in words."""
    return [
        f"{name}: {figures[figure]:,} {figure}, allowed are {most:,}"
        for name, figures in now.items()
        for figure in FIGURES
        if figures[figure] > (most := allowed.get(name, {}).get(figure, 0))
    ]


def size_table(counted: Sizes) -> str:
    others = [package.name for package in PACKAGES[1:]]
    of_first = [figures for name, figures in counted.items() if "/" not in name and name not in others]
    total = {figure: sum(figures[figure] for figures in of_first) for figure in FIGURES}
    rows: list[tuple[str, ...]] = [("", *FIGURES)]
    rows += [
        (name, *(f"{figures[figure]:,}" for figure in FIGURES))
        for name, figures in (counted | {PACKAGES[0].name: total}).items()
    ]
    return "\n".join(f"{name:24}" + "".join(f"{figure:>13}" for figure in figures) for name, *figures in rows)


def as_json(counted: Sizes) -> str:
    """A line for each package: two branches that change different ones are merged without a conflict."""
    return (
        "{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(figures)}" for name, figures in counted.items())
        + "\n}\n"
    )


def modules() -> dict[str, Path]:
    """Every module of src by its name; a package by its own."""
    names = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def code_lines(text: str) -> int:
    """Lines with code on them: a docstring, like every string that is a statement, is none."""
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines - strings)


def importers(paths: dict[str, Path]) -> dict[str, set[str]]:
    """By module, the modules that import it, at any place of their code."""
    by_module: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            imported: list[str] = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for module in imported:
                if module in paths and module != name:
                    by_module[module].add(name)
    return by_module


def calls_to_open() -> Counter[tuple[str, str]]:
    """The functions that modules call in other modules, until a run that was read before gives its first table."""
    from rankscope.timeline.run import open_run

    with tempfile.TemporaryDirectory() as cache:

        def first_table() -> None:
            open_run([TRACE], cache=Path(cache)).rows("SELECT count(*) FROM slices")

        first_table()  # reads the files, imports what is imported late
        calls: Counter[tuple[str, str]] = Counter()

        def count(frame: FrameType, event: str, argument: object) -> None:
            back = frame.f_back
            while back is not None and back.f_globals.get("__name__") == "functools":  # a cached property
                back = back.f_back
            if event != "call" or back is None:
                return
            caller, callee = (str(each.f_globals.get("__name__", "")) for each in (back, frame))
            if caller == callee or not all(name.startswith("rankscope.") for name in (caller, callee)):
                return
            function = str(frame.f_code.co_qualname)  # type: ignore[attr-defined] # of Python 3.11
            owner = getattr(sys.modules[callee], function.partition(".")[0], None)
            attribute = vars(owner).get(frame.f_code.co_name) if isinstance(owner, type) else None
            is_property = isinstance(attribute, (property, cached_property))
            if callee != "rankscope.records":
                calls[caller, f"{callee}.{function}{PROPERTY * is_property}"] += 1

        sys.setprofile(count)
        try:
            first_table()
        finally:
            sys.setprofile(None)
    return calls


def empty_names(text: str) -> list[int]:
    """The lines at which a variable or a parameter gets a name that does not say what it holds."""
    nodes = [*ast.walk(ast.parse(text))]
    stored = [
        (node.lineno, node.id)
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    parameters = [(node.lineno, node.arg) for node in nodes if isinstance(node, ast.arg)]
    return sorted(line for line, name in (*stored, *parameters) if name in EMPTY_NAMES)


def complex_functions() -> list[str]:
    arguments = ("check", "--isolated", "--select=C901", "--output-format=concise", str(SRC))
    setting = f"lint.mccabe.max-complexity={COMPLEXITY}"
    ruff = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, "--config", setting],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in ruff.stdout.splitlines() if "C901" in line]


def print_shape(details: bool) -> None:
    paths = modules()
    texts = [path.read_text() for path in paths.values()]
    print(
        f"{sum(text.count(chr(10)) for text in texts):,} lines of Python, {sum(map(code_lines, texts)):,} of code"
    )
    single = {name: by for name, by in importers(paths).items() if len(by) == 1}
    print(f"{len(paths)} modules, {len(single)} with a single importer")
    if details:
        for name, by in sorted(single.items(), key=lambda item: len(paths[item[0]].read_text())):
            print(f"  {paths[name].read_text().count(chr(10)):>5} {name} <- {', '.join(by)}")
    unnamed = {path: lines for path in paths.values() if (lines := empty_names(path.read_text()))}
    print(f"{sum(map(len, unnamed.values()))} variables called {', '.join(EMPTY_NAMES)}")
    if details:
        for path, lines in unnamed.items():
            print(f"  {path.relative_to(ROOT)}: {', '.join(map(str, lines))}")
    calls = calls_to_open()
    functions = sum(not callee.endswith(PROPERTY) for _, callee in calls)
    print(
        f"{functions} calls between modules to open a run, {len(calls)} with properties "
        f"({calls.total()} with repetitions)"
    )
    if details:
        for (caller, callee), times in calls.items():
            print(f"  {times:>5} {caller} -> {callee}")
    complex_ones = complex_functions()
    print(f"{len(complex_ones)} functions over complexity {COMPLEXITY}")
    print(*complex_ones, sep="\n", end="\n" if complex_ones else "")


def main(
    argv: Sequence[str] | None = None, packages: Sequence[Path] = PACKAGES, allowed: Path = SIZES
) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--check", action="store_true", help=f"fail where a package is larger than in {SIZES.name}"
    )
    action.add_argument("--write", action="store_true", help=f"write {SIZES.name}")
    action.add_argument("--shape", action="store_true", help="other figures")
    parser.add_argument(
        "-v", action="store_true", dest="details", help="what the shape's figures are made of"
    )
    options = parser.parse_args(argv)
    if options.shape:
        print_shape(options.details)
        return 0
    counted = sizes(*packages)
    if options.check:
        more = grown(json.loads(allowed.read_text()), counted)
        if more:
            print("The code is larger than size.json allows:", *more, sep="\n  ")
            print("Make it smaller, or decide that it may grow: python benchmarks/code_figures.py --write")
        return int(bool(more))
    if options.write:
        allowed.write_text(as_json(counted))
        print(f"Wrote {allowed}")
        return 0
    print(size_table(counted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
