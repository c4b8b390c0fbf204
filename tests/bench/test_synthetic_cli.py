"""`rankscope bench synthetic`: what it prints, what it refuses, and that it never overwrites."""

from __future__ import annotations

import errno
import gzip
import json
import re
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.errors import StoreError
from rankscope_bench.commands import synthetic as bench_command
from rankscope_bench.synthetic import Plan, write

SMALL = ["bench", "synthetic", "--ranks", "2", "--events", "3e3", "--steps", "2"]


def run(*options: str | Path) -> int:
    return main([*SMALL, *map(str, options)])


def test_it_writes_and_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-o", tmp_path / "run") == 0
    printed = capsys.readouterr()
    first, second = printed.out.splitlines()
    assert first.startswith("Wrote 2 files of 3,000 events (")
    assert first.endswith(f"of text) and truth.json to {tmp_path / 'run'}")
    assert second == f"Next: rankscope stats {tmp_path / 'run'}"
    # On a busy machine writing takes long enough for a line of progress.
    assert re.sub(r"\r?rankscope: .* written, .*/s *\n?", "", printed.err) == ""
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "rank-00000-of-00002.pt.trace.json",
        "rank-00001-of-00002.pt.trace.json",
        "truth.json",
    ]


@pytest.mark.slow
def test_every_option_reaches_the_plan(tmp_path: Path) -> None:
    options = (
        "--ranks 4 --events 4k --steps 2 --seed 7 --gzip --with-stack --straggler 2:copy:1.5 --offset 0.25"
    )
    more = "--drift 12.5 --groups tp=2 --missing 1,3-3 --defect nan@2 --defect truncated "
    more += "--slower gelu=1.03 --step-noise 2 --no-jitter --bus 150 --leave-noise 0.02"
    target = tmp_path / "run"
    assert main(["bench", "synthetic", *options.split(), *more.split(), "-o", str(target)]) == 0
    assert json.loads((target / "truth.json").read_text())["plan"] == {
        "ranks": 4,
        "events_per_rank": 4_000,
        "steps": 2,
        "seed": 7,
        "gzip": True,
        "with_stack": True,
        "straggler": {"rank": 2, "cause": "copy", "ns": 1_500_000},
        "max_offset_ns": 250_000,
        "max_drift_ppm": 12.5,
        "leave_noise_ns": 20_000,
        "missing": [1, 3],
        "tensor_parallel": 2,
        "slower": [{"kernel": "gelu", "factor": 1.03}],
        "step_noise_pct": 2.0,
        "jitter": False,
        "latency_ns": 12_000,
        "bus_gb_s": 150.0,
        "defects": [{"name": "nan", "rank": 2}, {"name": "truncated", "rank": 0}],
    }
    with gzip.open(target / "rank-00002-of-00004.pt.trace.json.gz", "rt") as stream:
        assert "python_function" in stream.read()


def test_defect_list_needs_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "synthetic", "--defect", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 21
    assert lines[0].split()[0] == "truncated"
    assert all(len(line.split(maxsplit=1)[1]) > 10 for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ranks", "0"], "--ranks 0 is too small"),
        (["--ranks", "two"], "'two' is not a whole number"),
        (["--steps", "0"], "--steps 0 is too small"),
        (["--events", "100"], "100 events a rank are too few for 2 steps"),
        (["--straggler", "2"], "--straggler 2 is not RANK:CAUSE:MS"),
        (["--straggler", "5:host:1"], "--straggler: there is no rank 5"),
        (["--straggler", "1:gremlins:1"], "'gremlins' is not a cause"),
        (["--straggler", "1:host:0"], "a straggler must be late"),
        (["--offset", "soon"], "--offset soon is not a number"),
        (["--offset=-1"], "cannot be negative"),
        (["--drift", "1e9"], "is out of range"),
        (["--groups", "pp=2"], "--groups pp=2 is not known"),
        (["--groups", "tp=3"], "2 ranks cannot be split"),
        (["--slower", "gelu"], "--slower gelu is not KERNEL=FACTOR"),
        (["--slower", "gelu=0"], "cannot take 0 times as long"),
        (["--bus=-1"], "cannot be negative"),
        (["--missing", "x"], "--missing x is not a list of ranks"),
        (["--missing", "0-1"], "every rank is missing"),
        (["--missing", "7"], "--missing: there is no rank 7"),
        (["--defect", "rust"], "'rust' is not a defect"),
        (["--defect", "nan@9"], "there is no rank 9"),
        (["--sideways"], "unrecognized arguments: --sideways"),
    ],
)
def test_what_is_wrong_in_the_arguments_exits_2_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run("-o", tmp_path / "run", *options) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("missing", ["--ranks", "--events", "-o"])
def test_size_and_place_must_be_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    given = {"--ranks": "2", "--events": "3e3", "-o": str(tmp_path / "run")}
    del given[missing]
    assert main(["bench", "synthetic", *(word for pair in given.items() for word in pair)]) == 2
    assert f"{missing} is missing" in capsys.readouterr().err


def test_too_few_events_names_the_number_that_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-o", tmp_path / "run", "--events", "100") == 2
    enough = capsys.readouterr().err.partition("--events ")[2].split()[0]
    assert run("-o", tmp_path / "run", "--events", str(int(enough) - 1)) == 2
    assert run("-o", tmp_path / "run", "--events", enough) == 0


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert run("-o", tmp_path) == 1
    message, why, hint = capsys.readouterr().err.splitlines()
    assert message == f"rankscope: {tmp_path} is not empty"
    assert "not mixed" in why
    assert "-f" in hint
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.slow
def test_force_replaces_an_earlier_plan_and_nothing_else(tmp_path: Path) -> None:
    assert run("-o", tmp_path, "--ranks", "4") == 0
    (tmp_path / "notes.txt").write_text("mine")
    assert run("-o", tmp_path, "-f") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt",
        "rank-00000-of-00002.pt.trace.json",
        "rank-00001-of-00002.pt.trace.json",
        "truth.json",
    ]


@pytest.mark.parametrize("content", ["no json", "[]", '{"files": 3}', '{"files": ["notes.txt", "../x"]}'])
def test_force_survives_a_truth_file_that_is_not_ours(tmp_path: Path, content: str) -> None:
    (tmp_path / "truth.json").write_text(content)
    (tmp_path / "notes.txt").write_text("mine")
    assert run("-o", tmp_path, "-f") == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert json.loads((tmp_path / "truth.json").read_text())["version"] == 1


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    seen = 0

    def interrupt(nbytes: int) -> None:
        nonlocal seen
        seen += nbytes
        if seen > 1_200_000:  # in the second file
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(Plan(ranks=2, events_per_rank=3_000, steps=2), tmp_path / "run", progress=interrupt)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_full_disk_is_said_in_three_parts_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> int:
        path.write_bytes(b"some of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rankscope_bench.synthetic.generator.write_pieces", full)
    with pytest.raises(StoreError, match="cannot write to") as caught:
        write(Plan(ranks=1, events_per_rank=2_000, steps=1), tmp_path / "run")
    assert caught.value.why == "No space left on device."
    assert caught.value.hint
    assert list((tmp_path / "run").iterdir()) == []


def test_a_bad_plan_removes_nothing(tmp_path: Path) -> None:
    assert run("-o", tmp_path) == 0
    before = sorted(tmp_path.iterdir())
    assert run("-o", tmp_path, "-f", "--events", "100") == 2
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_in_the_place_of_the_folder_is_said_in_three_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").write_text("in the way")
    assert run("-o", tmp_path / "run") == 1
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_progress_is_shown_on_stderr_when_it_takes_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_command, "_SILENT_SECONDS", 0.0)
    assert run("-o", tmp_path / "run") == 0
    printed = capsys.readouterr()
    assert re.search(r"^rankscope: [0-9.]+ .?B written, [0-9.]+ .?B/s *\n$", printed.err)
    assert "written" not in printed.out


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "synthetic", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert "--defect list" in text
