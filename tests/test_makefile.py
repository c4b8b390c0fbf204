"""What `make` installs: the demo needs rankscope and torch, the tests the rest. Which tests are tried again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import ROOT, pytest_collection_finish


def dry_run(folder: Path, target: str) -> str:
    """The commands of a target in a checkout without .venv."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("needs make")
    (folder / "bench").mkdir()
    for name in ("Makefile", "pyproject.toml", "bench/pyproject.toml"):
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "tests" / "integration").mkdir(parents=True)
    for name in ("requirements-torch.txt", "install-packages.sh", "integration/install-nsight.sh"):
        shutil.copyfile(ROOT / "tests" / name, folder / "tests" / name)
    return subprocess.run([make, "-n", target], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_demo_installs_only_what_it_needs(tmp_path: Path) -> None:
    commands = dry_run(tmp_path, "demo")
    (install,) = (line for line in commands.splitlines() if "pip install" in line)
    assert install.endswith("--editable . torch==2.13.0")
    assert "install-packages" not in commands and "nsight" not in commands and "demo.sh" in commands


def test_the_tests_install_the_rest(tmp_path: Path) -> None:
    commands = dry_run(tmp_path, "tests")
    assert "--editable '.[dev]' --editable ./bench" in commands and "tests/install-packages.sh" in commands


def test_an_environment_for_tests_is_enough_for_the_demo(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / "bench").mkdir()
    for name in ("Makefile", "pyproject.toml", "bench/pyproject.toml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "tests").mkdir()
    shutil.copyfile(ROOT / "tests" / "requirements-torch.txt", tmp_path / "tests" / "requirements-torch.txt")
    (tmp_path / ".venv" / ".installed").touch()
    make = shutil.which("make")
    if make is None:
        pytest.skip("needs make")
    commands = subprocess.run([make, "-n", "demo"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "pip install" not in commands.stdout and "demo.sh" in commands.stdout


@pytest.mark.parametrize(("failed", "again"), [(3, True), (4, False)])
def test_at_most_three_tests_are_tried_again_and_named(
    capsys: pytest.CaptureFixture[str], failed: int, again: bool
) -> None:
    items = [SimpleNamespace(nodeid=f"tests/test_x.py::test_{number}") for number in range(failed)]
    session: Any = SimpleNamespace(config=SimpleNamespace(getoption=lambda name: 3), items=items)
    if again:
        pytest_collection_finish(session)
    else:
        with pytest.raises(pytest.exit.Exception, match="more than 3 tests failed"):
            pytest_collection_finish(session)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[2:]] == [
        one.nodeid for one in items
    ]
