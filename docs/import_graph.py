"""Draws which package imports which, as a Mermaid graph in docs/architecture.md; fails where packages form a cycle.

`make docs` runs it; a test compares what it would write with what is there. Every import statement counts, also those
inside functions and under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
START = "<!-- import graph: written by docs/import_graph.py -->"
END = "<!-- end of import graph -->"
SPLIT = ("rankscope.analysis",)
"""Packages whose sub-packages are drawn one by one in a graph of their own."""

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in sorted((SOURCE / "rankscope").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def module_graph() -> Graph:
    """Which module imports which."""
    known = modules()
    graph: Graph = {}
    for name, path in known.items():
        graph[name] = {target for target in _imports(path, known) if target != name}
    return graph


def _imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                target = f"{node.module}.{alias.name}"
                if target in known:
                    yield target
                elif node.module in known:
                    yield node.module


def package_of(module: str, below: str) -> str | None:
    """The part of `below` that a module belongs to; None for `below` itself, whose __init__ gathers its parts."""
    if not module.startswith(f"{below}."):
        return None
    return module[len(below) + 1 :].split(".")[0]


def package_graph(graph: Graph, below: str) -> Graph:
    packages: Graph = defaultdict(set)
    for module, targets in graph.items():
        source = package_of(module, below)
        if source is None:
            continue
        parts = {package_of(target, below) for target in targets}
        packages[source] |= {part for part in parts if part is not None and part != source}
    return dict(packages)


def ordered(graph: Graph) -> list[str]:
    """Packages from the lowest to the highest; raises CycleError where there is no such order."""
    return list(TopologicalSorter({name: sorted(graph[name]) for name in sorted(graph)}).static_order())


def reduced(graph: Graph) -> Graph:
    """Without the edges that follow from others: what cli reaches through views need not be drawn again."""
    reachable: Graph = {}
    for name in ordered(graph):
        reachable[name] = set(graph.get(name, ())).union(*(reachable[t] for t in graph.get(name, ())))
    return {
        name: {t for t in targets if not any(t in reachable[other] for other in targets if other != t)}
        for name, targets in graph.items()
    }


def mermaid(graph: Graph) -> list[str]:
    lines = ["```mermaid", "graph TD"]
    for source, targets in sorted(reduced(graph).items()):
        lines += [f"  {source} --> {target}" for target in sorted(targets)]
    return [*lines, "```"]


def section() -> str:
    """The graphs as text; raises CycleError where packages form a cycle."""
    graph = module_graph()
    ordered(graph)
    lines = [START, ""]
    for below in ("rankscope", *SPLIT):
        packages = package_graph(graph, below)
        lines += [
            f'Packages of `{below}`; an arrow means "imports", and arrows that follow from others are left out. '
            f"From the lowest: {', '.join(ordered(packages))}.",
            "",
            *mermaid(packages),
            "",
        ]
    return "\n".join([*lines, END])


def architecture_page() -> str:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    before, after = text[: text.index(START)], text[text.index(END) + len(END) :]
    return before + section() + after


if __name__ == "__main__":
    try:
        page = architecture_page()
    except CycleError as error:
        raise SystemExit(f"import cycle: {' -> '.join(error.args[1])}") from None
    (ROOT / "docs" / "architecture.md").write_text(page, encoding="utf-8")
    print("Wrote docs/architecture.md")
