"""A run that was received may hold links: nothing is removed or written through them, and none is fetched."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import slice_event, write_kineto
from rankscope.cli import main
from rankscope.errors import StoreError
from rankscope.store import incoming, index
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import open_run


@pytest.fixture(scope="module")
def read_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("links") / "run"
    for rank in range(2):
        write_kineto(folder / f"rank-{rank}.json", [slice_event("op", 1000.0, 5.0)])
    ingest([folder])
    return folder


@pytest.fixture
def run(tmp_path: Path, read_run: Path) -> Path:
    return shutil.copytree(read_run, tmp_path / "run")


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the user's, of which every name is one that rankscope would remove or replace."""
    folder = tmp_path / "precious"
    tables = f"rank=00000/segment=0/{socket.gethostname()}.1.aa"
    for name in (
        "x.json",
        "store.json",
        "lock",
        ".a.tmp",
        f"{tables}/slices.parquet",
        "derived/steps.table",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")
    return folder


def content(folder: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in folder.rglob("*")
    }


def _link(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


LINKS: dict[str, Callable[[Path, Path], Path]] = {
    "the store": lambda store, precious: store,
    "derived": lambda store, precious: store / "derived",
    "a rank": lambda store, precious: store / "rank=00007",
    "a segment": lambda store, precious: store / "rank=00000" / "segment=9",
    "tables": lambda store, precious: store / "rank=00000" / "segment=0" / f"{socket.gethostname()}.1.bb",
    "drawn slices": lambda store, precious: next(store.glob("rank=00000/segment=0/*")) / "slices.parquet",
    "a result": lambda store, precious: store / "derived" / "steps.table",
    "unfinished": lambda store, precious: store / f"incoming-{socket.gethostname()}.1.aa",
    "an unfinished file": lambda store, precious: store / ".x.1.tmp",
    "converted": lambda store, precious: store / "converted",
    "the lock": lambda store, precious: store / "lock",
    "the index": lambda store, precious: store / "store.json",
}


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("kind", LINKS)
def test_nothing_is_removed_or_written_through_a_link(
    kind: str, checked: bool, run: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store with links is refused. Also without that, as where a link is put there later, what it leads to stays."""
    before = content(precious)
    link = LINKS[kind](run / ".rankscope", precious)
    _link(link, precious / "x.json" if kind in ("the lock", "the index") else precious)
    write_kineto(
        run / "rank-0.json", [slice_event("other", 1000.0, 5.0)]
    )  # to be published: the store is cleaned
    monkeypatch.setattr(incoming, "_ABANDONED_AFTER_S", -1)  # everything is old
    if checked:
        with pytest.raises(StoreError, match="is not used") as caught:
            open_run([run])
        assert f"{link} is a link" in caught.value.why and "--cache" in caught.value.hint
    elif kind != "the store":
        monkeypatch.setattr(index, "_refuse", lambda store, odd_files: None)
        with contextlib.suppress(StoreError):
            ingest([run])
    assert content(precious) == before


def test_a_pipe_in_a_store_does_not_block(run: Path) -> None:
    (run / ".rankscope" / "store.json").unlink()
    os.mkfifo(run / ".rankscope" / "store.json")
    with pytest.raises(StoreError, match="is not used") as caught:
        ingest([run])
    assert "neither a file nor a folder" in caught.value.why


def test_a_linked_store_is_opened_through_the_cache(run: Path, precious: Path, tmp_path: Path) -> None:
    _link(run / ".rankscope", precious)
    assert open_run([run], cache=tmp_path / "cache").ranks == [0, 1]


@pytest.fixture
def ssh(tmp_path: Path) -> list[str]:
    """An ssh whose other machine is this one."""
    program = tmp_path / "ssh"
    program.write_text('#!/bin/sh\nwhile [ "$1" != there ]; do shift; done\nshift\nexec sh -c "$*"\n')
    program.chmod(0o755)
    return ["--ssh", str(program), "--remote-rankscope", "/nowhere/rankscope"]


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
def test_fetch_brings_no_links(
    run: Path, precious: Path, ssh: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = content(precious)
    (run / ".rankscope" / "derived").symlink_to(precious)
    (run / "rank-5.rankscope.json").symlink_to(precious / "x.json")
    os.mkfifo(run / ".rankscope" / "pipe")
    here = tmp_path / "here"
    assert main(["fetch", f"there:{run}", "-o", str(here), *ssh]) == 0
    copied = list(here.rglob("*"))
    assert copied and all(path.is_dir() or path.is_file() for path in copied)
    assert not any(path.is_symlink() for path in copied)
    assert capfd.readouterr().out.startswith("Copied 2 files")
    # An earlier copy with a link in it: --delete would empty what it leads to.
    (here / ".rankscope" / "derived").symlink_to(precious)
    assert main(["fetch", f"there:{run}", "-o", str(here), "-f", *ssh]) == 1
    assert "is a link" in capfd.readouterr().err
    raw = tmp_path / "raw"
    (run / "rank-9.json").symlink_to(run / "rank-0.json")
    assert main(["fetch", f"there:{run}", "-o", str(raw), "--raw", *ssh]) == 0
    assert (raw / "rank-9.json").is_file() and not any(path.is_symlink() for path in raw.rglob("*"))
    assert content(precious) == before
