"""The site builds without a warning and works from disk; links, commands and code in pages are right."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import DEMO, ROOT
from rankscope.capture.plan import Plan
from rankscope.capture.schedule import Schedule
from rankscope.capture.summary import summary
from rankscope.cli import COMMANDS

BY_HAND = {
    "docs/bench.md": 2,
    "docs/jobs.md": 3,
    "docs/nsight.md": 4,
    "docs/nsys.md": 1,
    "docs/remote.md": 1,
    "docs/scale.md": 1,
}
"""Output that is neither written by `make docs` nor compared by a test; the pages say why, beside it."""


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LAUNCHERS = {
    "torchrun",
    "mpiexec",
    "mpirun",
    "srun",
    "python",
    "deepspeed",
    "accelerate",
    "bash",
    "ray",
    "COMMAND",
    "…",
    "--",
    "|",
    "&&",
}


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(page: str) -> set[str]:
    """Of the headings, as the site and GitHub make them."""
    names: Counter[str] = Counter()
    made = set()
    for heading in re.findall("^#+ (.+)$", FENCED.sub("", text_of(page)), re.M):
        plain = re.sub(r"\[([^]]+)]\([^)]+\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        made.add(f"{name}_{names[name]}" if names[name] else name)
        names[name] += 1
    return made


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_have_their_targets(page: str) -> None:
    plain = re.sub("`[^`\n]+`", "", FENCED.sub("", text_of(page)))
    for target in re.findall(r"\]\(([^)\s]+)\)", plain):
        if re.match("[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(str(file.relative_to(ROOT))), f"{page}: {target}"
        assert not page.startswith("docs/") or (ROOT / "docs") in file.parents, (
            f"{page}: not in the site: {target}"
        )


def commands(text: str) -> Iterator[list[str]]:
    """What is to be entered, in blocks and within sentences."""
    lines = [line for _, block in FENCED.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    for line in (*lines, *re.findall("`([^`]+)`", FENCED.sub("", text))):
        match = re.match(r"(?:\$ )?(?:.*? )?rankscope ([a-z]+ .*)", line.replace("\n", " "))
        if match and match[1].split()[0] in COMMANDS:
            quoted = match[1].count("'") % 2 == match[1].count('"') % 2 == 0
            yield shlex.split(match[1], comments=True) if quoted else match[1].split()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "/adr/" not in page and "commands.md" not in page]
)
def test_commands_have_only_options_that_exist(page: str) -> None:
    sections = text_of("docs/commands.md").split("\n## rankscope ")[1:]
    for name, *words in commands(text_of(page)):
        known = {
            option
            for section in sections
            if section.split()[0] == name
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", section)
        }
        for word in words:
            if word in LAUNCHERS or word.endswith(".py"):
                break
            option = re.match("--[a-z][a-z-]*(?=[=,.)]|$)", word)
            assert option is None or option[0] in known, f"{page}: rankscope {name} has no {word}"


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_code_are_code(page: str) -> None:
    """Python compiles, JSON, TOML and YAML can be read."""
    for language, block in FENCED.findall(text_of(page)):
        if language == "python":
            compile(block, page, "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif language == "json":
            json.loads(block)
        elif language == "yaml":
            pytest.importorskip("yaml").safe_load(block)
        else:
            assert language in ("", "toml", "mermaid", "sh"), f"{page}: {language}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical", reason="needs zensical (pip install 'rankscope[dev]')")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--clean",
        "--strict",
        "--config-file",
        "mkdocs.yml",
    ]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


@pytest.mark.thorough
def test_the_site_builds_strictly(site: Path) -> None:
    assert (site / "reports" / "breakdown.html").is_file() and not [*site.rglob("*.py")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)], ids=["light", "dark", "phone"]
)
def test_the_site_works_from_disk(chromium: Any, site: Path, theme: str, width: int) -> None:
    """No error, no request to elsewhere, nothing wider than the screen, text that can be read, and a search."""
    page = chromium.new_context(viewport={"width": width, "height": 844}, color_scheme=theme).new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
    for name in ("index", "findings/slow-rank", "reports/faults", "files", "adr/index"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        text, back = page.evaluate(
            "['article p', 'body'].map((what) => getComputedStyle(document.querySelector(what)))"
            ".map(({ color, backgroundColor }, index) => index ? backgroundColor : color)"
        )
        brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (text, back)]
        assert abs(brightness[0] - brightness[1]) > 300, (name, text, back)
    page.goto((site / "index.html").as_uri())
    page.locator("button.md-search__button, label[for=__search]").locator("visible=true").first.click()
    field = page.get_by_placeholder("Search")
    field.press_sequentially("straggler")
    page.get_by_role("heading", name=re.compile("stragglers: which rank do the others wait for")).wait_for()
    assert field.input_value() == "straggler" and wrong == []


@pytest.mark.thorough
def test_pages_show_what_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    outputs = importlib.import_module("outputs")
    old = {page: page.read_text(encoding="utf-8") for page in outputs.pages()}
    stale = [
        str(page.relative_to(ROOT))
        for page, text in old.items()
        if outputs.with_outputs(text, tmp_path) != text
    ]
    assert stale == [], "make docs writes them anew"
    index = re.sub(
        r"(\$ rankscope stats run\n).*?```", r"\1old\n…\n```", old[ROOT / "docs" / "index.md"], flags=re.S
    )
    assert "\nold\n" in index and "\nold\n" not in outputs.with_outputs(index, tmp_path)


def test_figures_are_those_of_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    generate = importlib.import_module("generate")
    for path, docs in generate.WITH_FIGURES.items():
        text = path.read_text(encoding="utf-8")
        assert generate.with_figures(text, docs) == text, f"make docs writes {path.name} anew"
        assert (
            re.search(r"Of 100 culprits that it names \d+ are right", text)
            and "It predicts what a fix saves" in text
        )
        assert generate.with_figures(text.replace("right one in", "wrong one in"), docs) == text


def test_the_readme_is_short() -> None:
    """A picture first, and commands that fit 80 columns."""
    text = text_of("README.md")
    assert len(text.splitlines()) < 75 and text.index("![") < text.index("pip install")
    assert all(len(line) <= 80 for _, block in FENCED.findall(text) for line in block.splitlines())


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
