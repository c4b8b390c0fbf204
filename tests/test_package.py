"""What is released: the same bytes from the same sources, and the oldest versions of what it needs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT
from rankscope import native

_BUILT_FROM = ("src", "docs", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")


def build_wheel(folder: Path, **environment: str) -> Path:
    """A wheel of a copy of the sources in this folder, which must not exist."""
    pytest.importorskip("hatchling")
    folder.mkdir()
    for name in _BUILT_FROM:
        ignored = shutil.ignore_patterns("__pycache__")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, copy_function=shutil.copyfile, ignore=ignored)
        else:
            shutil.copyfile(ROOT / name, folder / name)
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", "out"]
    subprocess.run(
        words, cwd=folder, check=True, capture_output=True, timeout=120, env=os.environ | environment
    )
    [wheel] = (folder / "out").glob("*.whl")
    return wheel


@pytest.mark.thorough
def test_the_wheel_is_the_same_from_another_folder_time_and_umask(tmp_path: Path) -> None:
    digests = set()
    for folder, mask in ((tmp_path / "a", 0o022), (tmp_path / "b", 0o077)):
        before = os.umask(mask)
        try:
            wheel = build_wheel(folder)
        finally:
            os.umask(before)
        digests.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
        if native.functions is not None:  # then there is a compiler
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            assert wheel.name.endswith(f"-cp311-abi3-{platform}.whl")
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("newer", "flags", "current"),
    [
        ("_native.abi3.so", "", True),
        ("scan.c", "", False),
        ("json.h", "", False),
        ("_native.abi3.so", "-g", False),
    ],
)
def test_an_editable_install_compiles_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: str, flags: str, current: bool
) -> None:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec and spec.loader
    hatch_build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hatch_build)
    monkeypatch.setattr(hatch_build, "__file__", __file__)
    assert not hatch_build._is_current(tmp_path), "there is no library"
    written = Path(__file__).stat().st_mtime
    for name in ("_native.abi3.so", "scan.c", "json.h"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, written + 10 + 10 * (name == newer)))
    monkeypatch.setenv("RANKSCOPE_CFLAGS", flags)
    assert hatch_build._is_current(tmp_path) is current


@pytest.mark.slow
def test_without_a_compiler_the_wheel_has_no_c_parts(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "a", CC="false")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "rankscope/agents/guide.md" in names
    assert "rankscope/native/__init__.py" in names
    pages = {f"rankscope/definitions/findings/{page.name}" for page in (ROOT / "docs/findings").glob("*.md")}
    assert pages | {page.replace(".md", ".html") for page in pages} <= {*names}
    assert not [name for name in names if name.endswith((".so", ".c", ".h"))]


def test_the_oldest_versions_are_those_of_the_metadata() -> None:
    """tests/requirements-oldest.txt is what CI installs to try the lower bounds."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("\ndependencies = [")[2].partition("\n]")[0]
    bounds = dict(re.findall(r'^ +"([a-z0-9.-]+)>=([0-9.]+)', section, re.MULTILINE))
    pinned = re.findall(
        r"^([a-z0-9.-]+)==([0-9.]+)", (ROOT / "tests" / "requirements-oldest.txt").read_text(), re.MULTILINE
    )
    assert bounds
    assert set(bounds) == {name for name, _ in pinned}
    for name, version in pinned:
        assert version == bounds[name] or version.startswith(f"{bounds[name]}."), name


def test_watch_is_callable_beside_the_package_of_its_name() -> None:
    import rankscope.watch.rings  # it takes the name `watch` in rankscope

    with pytest.raises(TypeError, match="nothing"):
        rankscope.watch(nothing=1)  # type: ignore[call-arg]
