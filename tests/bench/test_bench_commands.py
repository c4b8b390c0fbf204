"""The commands of rankscope-bench are found where it is installed; elsewhere the error says what to install."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rankscope
import rankscope_bench
from rankscope.cli import bench, main

OF_RANKSCOPE_BENCH = ("synthetic", "cluster", "blame", "exam")


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("rankscope.cli.bench.entry_points", lambda group: ())
    bench._commands.cache_clear()
    yield
    bench._commands.cache_clear()


@pytest.mark.usefixtures("not_installed")
@pytest.mark.parametrize("words", [(), ("--help",), ("--data", "4", "-o", "run"), ("make",)])
@pytest.mark.parametrize("name", OF_RANKSCOPE_BENCH)
def test_without_it_the_error_says_what_to_install(
    name: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", name, *words]) == 1
    what, why, hint = capsys.readouterr().err.splitlines()
    assert what == f"rankscope: rankscope bench {name} needs the package rankscope-bench"
    assert "not installed" in why and "pip install rankscope-bench" in hint


@pytest.mark.parametrize("installed", [True, False])
def test_the_help_lists_all_commands(
    installed: bool, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if not installed:
        request.getfixturevalue("not_installed")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and all(f"    {name} " in text for name in ("seqpar", *OF_RANKSCOPE_BENCH))


def test_the_exam_lists_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "exam", "--list", "--only", "link-"]) == 0
    names = capsys.readouterr().out.split()
    assert names and all("link-" in name for name in names)


def test_both_distributions_have_the_same_version() -> None:
    assert rankscope_bench.__version__ == rankscope.__version__
