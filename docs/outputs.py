"""Writes what commands print into the pages.

Every block that begins with '$ rankscope …' and shows output is written again: `make docs` runs the command on the runs
of tests/data or of simulated_runs.py that it names. Its width stays 80 or 100 columns. A line '…' stands for what
is left out. At the end of a block, it keeps its number of paragraphs, or of lines if it has only one. Elsewhere, the
output goes on with the line that follows there, and as many lines as before.

A comment before a block says that it is not written here: '<!-- tested: FILE -->' where a test compares it with what is
printed, '<!-- by hand: REASON -->' where it cannot be printed again. A test counts the latter.
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
from typing import NamedTuple

from simulated_runs import SIMULATED

from rankscope.cli import main as rankscope

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "data"
PUBLIC = HERE.parent.parent / "shared" / "data" / "public"
"""Traces of other projects, which are not part of the repository: without them, what pages show of them stays."""
FENCE = re.compile(r"^(?:<!-- (tested|by hand): (.+?) -->\n)?```(\w*)\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^\$ (?:[^\n]*\\\n)*[^\n]*\n", re.M)
OUTPUT = re.compile(r"^(─|rankscope: |\d+: rankscope: |(critical|warning|info|ok): )", re.M)
LINE = re.compile(r"\$ rankscope ((?:[^\n]*\\\n)*[^\n]*?)(?P<file> > \S+)?(?P<code>; echo \$\?)?\n")
READ = re.compile(r"^Read \d+ files? \(.+\n", re.M)
CUT = "…"
WIDTHS = (80, 100)
HOME = "/home/me"
"""What pages show of the folder in which the commands ran."""


class Block(NamedTuple):
    """A fenced block that shows output, and how it is known to be right."""

    text: str
    mark: str | None
    """`tested`, `by hand`, or None: it is written here."""
    reason: str
    """The file of the test, or why it is written by hand."""


def pages() -> Iterator[Path]:
    """README and the pages of the site; decisions are about their time, and generate.py writes commands.md."""
    yield HERE.parent / "README.md"
    for path in sorted(HERE.rglob("*.md")):
        if "adr" not in path.relative_to(HERE).parts and path.name != "commands.md":
            yield path


def output_blocks(text: str) -> list[Block]:
    """The blocks of a page that show output."""
    matches = [match for match in FENCE.finditer(text) if _shows_output(match)]
    return [Block(match[4], match[1], match[2] or "") for match in matches]


def with_outputs(text: str, folder: Path) -> str:
    """The text of a page, with outputs as they are now. `folder` holds copies of the runs."""

    def printed(match: re.Match[str]) -> str:
        if match[1] or not _shows_output(match):
            return match[0]
        line = LINE.match(match[4])
        if line is None:
            raise SystemExit(f"outputs.py: this block needs a mark, or begins with a command:\n{match[4]}")
        body = match[4][line.end() :].rstrip("\n").split("\n")
        now = output(line, folder, width=next((w for w in WIDTHS if max(map(len, body)) <= w), WIDTHS[-1]))
        return match[0] if now is None else f"```\n{line[0]}{_cut(now, body)}\n```"

    return FENCE.sub(printed, text)


def _shows_output(match: re.Match[str]) -> bool:
    if match[3]:
        return False
    return bool(COMMAND.sub("", match[4]).strip() if COMMAND.search(match[4]) else OUTPUT.search(match[4]))


def _cut(output: str, old: list[str]) -> str:
    """The output, without what the block left out before."""
    head, *parts = "\n".join(old).split(f"\n{CUT}")
    if not parts:
        return output
    lines = output.split("\n")
    if parts == [""] and "\n\n" in head:
        shown = ["\n\n".join(output.split("\n\n")[: head.count("\n\n") + 1])]
    else:
        shown = ["\n".join(lines[: head.count("\n") + 1])]
    for part in parts:
        first = lines.index(part.split("\n")[1]) if part else len(lines)
        shown.append("\n".join(["", *lines[first : first + part.count("\n")]]))
    return f"\n{CUT}".join(shown).rstrip("\n")


def output(line: re.Match[str], folder: Path, width: int) -> str | None:
    """What the command prints in `folder`, on both streams; only its errors where it writes to a file."""
    words = shlex.split(line[1].replace("\\\n", " "))
    options = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    named = [*words[1:options], *(words[words.index("--from") + 1 :][:1] if "--from" in words else ())]
    runs = [word for word in named if _copy(word, folder)]
    if not runs and words[0] != "job":
        if not PUBLIC.is_dir():
            return None
        raise SystemExit(f"outputs.py: rankscope {line[1]} names no run of tests/data or simulated_runs.py")
    text, elsewhere = io.StringIO(), io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        with contextlib.chdir(folder):
            with contextlib.redirect_stdout(elsewhere), contextlib.redirect_stderr(elsewhere):
                for run in runs:  # what reading them says is not shown
                    rankscope(["ingest", run])
            out = elsewhere if line["file"] else text
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(text):
                code = rankscope(words)
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    if not text.getvalue():
        raise SystemExit(f"outputs.py: rankscope {line[1]} prints nothing")
    shown = READ.sub("", text.getvalue()).replace(str(folder), HOME).strip("\n")
    lines = [*shown.splitlines(), *([str(code)] if line["code"] else [])]
    return "\n".join(line.rstrip() for line in lines)


def _copy(name: str, folder: Path) -> bool:
    """Whether there is a run of that name; it is in the folder then."""
    copy = folder / name
    if copy.exists():
        return True
    if name in SIMULATED:
        with contextlib.redirect_stdout(io.StringIO()):
            SIMULATED[name](copy)
        return True
    paths = (path for data in (DATA, PUBLIC) for path in sorted(data.rglob("*")))
    named = [path for path in paths if path.name in (name, f"{name}.xz")]
    path = min(named, key=lambda path: len(path.parts), default=None)
    if path is None:
        return False
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
    return True


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
