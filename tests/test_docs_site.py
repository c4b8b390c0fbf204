"""The docs site builds without a warning: every link has a target. Lists in the docs are complete."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from conftest import DEMO, ROOT
from rankscope.capture.plan import Plan
from rankscope.capture.schedule import Schedule
from rankscope.capture.summary import summary

BY_HAND = {
    "docs/bench.md": 3,
    "docs/jobs.md": 3,
    "docs/nsight.md": 5,
    "docs/nsys.md": 1,
    "docs/remote.md": 1,
    "docs/scale.md": 1,
}
"""Output that is neither written by `make docs` nor compared by a test; the pages say why, beside it."""


@pytest.mark.thorough
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs mkdocs (pip install 'rankscope[dev]')")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "reports" / "breakdown.html").is_file()


@pytest.mark.thorough
def test_pages_show_what_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some pages; `make docs` writes all of them."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    outputs = importlib.import_module("outputs")
    names = ("diff.md", "slow-job.md", "reports/stragglers.md", "reports/hang.md", "files.md", "jobs.md")
    pages = [ROOT / "README.md", *(ROOT / "docs" / name for name in names)]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert any(block.mark is None for block in outputs.output_blocks(text)), page
        assert outputs.with_outputs(text, tmp_path) == text, f"make docs writes {page.name} anew"
    stale = re.sub(
        r"(\$ rankscope stats seqpar-gloo4-slow2\n).*?```", r"\1old\n…\n```", pages[0].read_text(), flags=re.S
    )
    assert "\nold\n" in stale and "\nold\n" not in outputs.with_outputs(stale, tmp_path)


def test_the_tutorial_shows_how_its_run_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DEMO)
    plan = Plan(ranks="all", when=Schedule(active=6))
    page = (ROOT / "docs" / "slow-job.md").read_text(encoding="utf-8")
    assert f"rankscope: {summary(Path('run').absolute(), plan)}\n" in page


def test_every_output_is_generated_or_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that need a GPU, a cluster or another machine are listed; the list may only shrink."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    outputs = importlib.import_module("outputs")
    by_hand: Counter[str] = Counter()
    for page in outputs.pages():
        name = str(page.relative_to(ROOT))
        for block in outputs.output_blocks(page.read_text(encoding="utf-8")):
            if block.mark == "by hand":
                by_hand[name] += 1
            elif block.mark == "tested":
                test = (ROOT / block.reason).read_text(encoding="utf-8")
                assert page.name in test, f"{block.reason} does not read {name}"
            else:
                assert block.text.startswith("$ rankscope "), (
                    f"{name}: {block.text[:60]!r} needs a command or a mark"
                )
    assert by_hand == BY_HAND


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d{4})\]\((.+?)\) \| .+ \| (.*?) ?\|$", index, re.M)
    assert [name for _, name, _ in rows] == sorted(path.name for path in folder.glob("0*.md"))
    assert all(name.startswith(number) for number, name, _ in rows)
    numbers = [number for row in rows for number in (row[0], *row[2].split(", ")) if number]
    assert len(numbers) == len(set(numbers)) and all(re.fullmatch(r"\d{4}", number) for number in numbers)


def test_the_architecture_names_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    root = ROOT / "src" / "rankscope"
    modules = {path.stem for path in root.glob("*.py")} | {
        path.parent.name for path in root.glob("*/__init__.py")
    }
    assert sorted(modules - {"__init__"} - set(re.findall("`(\\w+)`", packages))) == []
    walk = text[text.index("## The way of one slice") : text.index("## Packages")]
    met = {name.replace(".", "/") for name in re.findall(r"`(\w+\.[\w.]+)`", walk)}
    gone = [name for name in met if not ((root / f"{name}.py").is_file() or (root / name).is_dir())]
    assert sorted(gone) == [] and 30 < len(met) < 60


def test_the_changelog_says_everything_once() -> None:
    for version in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        headings = re.findall("^### .+", version, re.M)
        assert len(headings) == len(set(headings)), version[:20]
        starts = re.findall("^- (.{30})", version, re.M)
        assert sorted(starts) == sorted(set(starts)), version[:20]
