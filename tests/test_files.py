"""Folders and files are for their owner, or for the group where the folder says so, whatever the umask is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.files import (
    close_to_others,
    copy_file,
    create_json,
    make_private_folder,
    open_private,
    write_json,
)


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_folder_and_its_files_are_for_the_owner(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "runs" / "a"
    make_private_folder(folder)
    make_private_folder(folder)  # once more: it exists
    write_json(folder / "one.json", {})
    create_json(folder / "two.json", {})
    copy_file(folder / "one.json", folder / "three.json")
    with open_private(folder / "four", "wb") as file:
        file.write(b"4")
    (folder / "five").write_text("made by another program")
    close_to_others(folder / "five")
    assert mode(folder) == 0o700
    assert mode(folder.parent) == 0o777 & ~umask
    assert {mode(path) for path in folder.iterdir()} == {0o600}


def test_a_folder_for_the_group(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    make_private_folder(folder, for_group=True)
    write_json(folder / "one.json", {})
    assert (mode(folder), mode(folder / "one.json")) == (0o2750, 0o640)


def test_a_folder_in_a_project_folder_follows_it_as_far_as_the_umask_allows(
    tmp_path: Path, umask: int
) -> None:
    tmp_path.chmod(0o2770)
    folder = tmp_path / "a"
    make_private_folder(folder)
    write_json(folder / "one.json", {})
    shared = umask != 0o077
    assert mode(folder) == (0o2750 if shared else 0o2700)
    assert mode(folder / "one.json") == (0o640 if shared else 0o600)


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path)
    write_json(tmp_path / "one.json", {})
    assert (mode(tmp_path), mode(tmp_path / "one.json")) == (0o755, 0o600)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "file")
