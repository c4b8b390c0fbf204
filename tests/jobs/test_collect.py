"""Collecting from many nodes at once: every file whole, one writer each, nothing lost. Each node is a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.jobs.batch import collect

NODES = 8
_COLLECT = """\
import sys, time
from pathlib import Path
from rankscope.jobs.batch import collect
print("ready", flush=True)
sys.stdin.readline()
print(collect(Path(sys.argv[1]), Path(sys.argv[2])))
"""


@pytest.mark.slow
def test_all_nodes_at_once(tmp_path: Path) -> None:
    """Each node has its own rankscope.json of another length, and a trace: no mixture of two may arrive."""
    run = tmp_path / "run"
    run.mkdir()
    for node in range(NODES):
        source = tmp_path / f"node{node}" / "point-001"
        source.mkdir(parents=True)
        (source / "rankscope.json").write_text(f'{{"node": "{str(node) * (200_000 * (node + 1))}"}}')
        (source / f"rank-{node:05d}.json.gz").write_bytes(os.urandom(300_000))
        (source / ".rankscope.json.host.1.tmp").write_text("unfinished")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _COLLECT, str(tmp_path / f"node{node}"), str(run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in range(NODES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all are ready: they start together
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    copied = [int(process.communicate()[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * NODES
    assert sorted(copied) == [1] * (NODES - 1) + [2], "one of them has written rankscope.json"
    texts = [(tmp_path / f"node{node}" / "point-001" / "rankscope.json").read_text() for node in range(NODES)]
    assert (run / "point-001" / "rankscope.json").read_text() == texts[copied.index(2)]
    for node in range(NODES):
        name = f"point-001/rank-{node:05d}.json.gz"
        assert (run / name).read_bytes() == (tmp_path / f"node{node}" / name).read_bytes()
    assert len(list((run / "point-001").iterdir())) == NODES + 1, "no temporary file is left"


def test_two_nodes_with_the_same_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second is told, and its file stays on its disk; the same file again is not an error."""
    for node in ("a", "b"):
        (tmp_path / node).mkdir()
        (tmp_path / node / "rank-00000.json").write_text(node)
        (tmp_path / node / f"rank-{node}.json").write_text(node)
    run = tmp_path / "run"
    assert main(["job", "collect", str(tmp_path / "a"), str(run)]) == 0
    assert main(["job", "collect", str(tmp_path / "a"), str(run)]) == 0
    assert main(["job", "collect", str(tmp_path / "b"), str(run)]) == 1
    said = capsys.readouterr().err
    assert "rank-00000.json of" in said and len(said.splitlines()) == 3
    assert (run / "rank-00000.json").read_text() == "a"
    assert (run / "rank-b.json").read_text() == "b", "the rest was copied"
    assert main(["job", "collect", str(tmp_path / "missing"), str(run)]) == 0, "a node without captured ranks"


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    for node in ("a", "b"):
        (tmp_path / node).mkdir()
        (tmp_path / node / "rankscope.json").write_text(node)
    assert [collect(tmp_path / node, tmp_path / "run") for node in ("a", "b")] == [1, 0]
    assert [(path.name, path.read_text()) for path in (tmp_path / "run").iterdir()] == [
        ("rankscope.json", "a")
    ]


def test_a_disk_that_is_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "x").write_text("x")
    (tmp_path / "run").write_text("a file, where the folder should be")
    assert main(["job", "collect", str(tmp_path / "node"), str(tmp_path / "run")]) == 1
    assert "cannot copy" in capsys.readouterr().err
