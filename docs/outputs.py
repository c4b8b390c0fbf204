"""Writes what commands print into the pages, where they print it about a run of tests/data, or of the tutorial.

That is every block that begins with '$ rankscope COMMAND RUN'. Its width stays 80 or 100 columns. A block that ends
with a line '…' is cut there: it keeps its number of paragraphs. `make docs` runs it. The tutorial's runs are those that
`make demo` has recorded here: demo/run, and demo/fixed if it was recorded as the demo says at its end.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rankscope.cli import main as rankscope

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "data"
BLOCK = re.compile(r"^```\n\$ rankscope ((?:stats|diff|whatif) [^\n\\>|;]+)\n(.*?)^```$", re.M | re.S)
WIDTHS = (80, 100)


def pages() -> Iterator[Path]:
    """README and the pages of the site; decisions are about their time."""
    yield HERE.parent / "README.md"
    yield from sorted(path for path in HERE.rglob("*.md") if "adr" not in path.parts)


def recorded(name: str) -> Path | None:
    """The file or folder of tests/data that is called so, compressed or not; `run` and `fixed` are the tutorial's."""
    if name in ("run", "fixed"):
        return path if (path := HERE.parent / "demo" / name).is_dir() else None
    paths = (path for path in sorted(DATA.rglob("*")) if path.name in (name, f"{name}.xz"))
    return min(paths, key=lambda path: len(path.parts), default=None)


def with_outputs(text: str, folder: Path) -> str:
    """The text of a page, with outputs as they are now. `folder` holds copies of the runs."""

    def printed(match: re.Match[str]) -> str:
        words = shlex.split(match[1])
        runs = {word: path for word in words[1:] if "-" not in word[:1] and (path := _run(word, words))}
        if not runs:
            return match[0]
        for name, path in runs.items():
            _copy(path, folder / name)
        body = match[2].rstrip()
        width = next((size for size in WIDTHS if max(map(len, body.splitlines())) <= size), WIDTHS[-1])
        output = _output(words, folder, width)
        if not output:
            raise SystemExit(f"outputs.py: rankscope {match[1]} prints nothing")
        if body.endswith("\n…"):
            kept = output.split("\n\n")[: body.count("\n\n") + 1]
            output = "\n\n".join(kept) + "\n…"
        return f"```\n$ rankscope {match[1]}\n{output}\n```"

    return BLOCK.sub(printed, text)


def _run(word: str, words: list[str]) -> Path | None:
    """The positional arguments of these commands are runs: they stand before the options."""
    options = next((at for at, other in enumerate(words) if other.startswith("-")), len(words))
    return recorded(word) if words.index(word) < options else None


def _copy(path: Path, copy: Path) -> None:
    if copy.exists():
        return
    files = [path]
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file() and ".rankscope" not in file.parts]
    for file in files:
        target = copy / file.relative_to(path) if path.is_dir() else copy
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".xz":
            target.with_name(target.name.removesuffix(".xz")).write_bytes(lzma.decompress(file.read_bytes()))
        else:
            shutil.copy(file, target)


def _output(words: list[str], folder: Path, width: int) -> str:
    text = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(text),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            rankscope(words)
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rankscope-docs-") as folder:
        for page in pages():
            old = page.read_text(encoding="utf-8")
            new = with_outputs(old, Path(folder))
            if new != old:
                page.write_text(new, encoding="utf-8")
                print(f"Wrote {page.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
