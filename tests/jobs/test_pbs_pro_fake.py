"""PBS Pro is not to be had here: a recording fake of its qsub, qstat and qdel, which answer as PBS Pro does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.jobs import scheduler

QSTAT = """\
Job Id: 4711.pbs-01
    Job_Name = train
    job_state = {letter}
    Exit_status = {code}
    Resource_List.select = 2:system=polaris
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = {
        "qsub": 'cp "$1" script; echo 4711.pbs-01.hostmgmt',
        # running when asked first, then ended
        "qstat": 'echo "$*" >>asked; if [ -e ran ]; then cat ended; else touch ran; cat running; fi',
        "qdel": 'echo "$*" >deleted',
        "qsig": 'echo "$*" >told',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "running").write_text(QSTAT.format(letter="R", code=""))
    (tmp_path / "ended").write_text(QSTAT.format(letter="F", code="7"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scheduler, "_FIRST_PAUSE_S", 0.0)
    return tmp_path


def test_submit_and_wait(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "job",
        "pbs",
        "--site",
        "polaris",
        "--account",
        "A",
        "--submit",
        "--wait",
        "--",
        "python",
        "train.py",
    ]
    assert main(words) == 7, "the job's own code"
    said = capsys.readouterr()
    assert said.out == "4711.pbs-01.hostmgmt\n"
    assert said.err.splitlines() == [
        "rankscope: job 4711.pbs-01.hostmgmt: running",
        "rankscope: job 4711.pbs-01.hostmgmt: finished",
    ]
    script = (fake / "script").read_text()
    for directive in (
        "-l select=1:system=polaris",
        "-l place=scatter",
        "-l filesystems=home:eagle",
        "-k doe",
    ):
        assert f"#PBS {directive}\n" in script
    assert (fake / "asked").read_text().startswith("-x -f 4711.pbs-01.hostmgmt\n")


def test_status_and_delete(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for said in ("running\n", "finished, exit code 7\n"):
        assert main(["job", "status", "4711", "--scheduler", "pbs"]) == 0
        assert capsys.readouterr().out == said
    assert main(["job", "delete", "4711", "--scheduler", "pbs"]) == 0
    assert (fake / "deleted").read_text() == "4711\n"
    assert capsys.readouterr().out == "Deleted job 4711\n"


def test_a_running_job_is_told(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that it collects what there is; qdel would give it ten seconds."""
    assert main(["job", "delete", "4711", "--scheduler", "pbs"]) == 0
    assert (fake / "told").read_text() == "-s SIGTERM 4711\n"
    assert not (fake / "deleted").exists()
    assert "Asked job 4711 to end" in capsys.readouterr().out
    (fake / "ran").unlink()
    assert main(["job", "delete", "4711", "--scheduler", "pbs", "--now"]) == 0
    assert (fake / "deleted").exists()


def test_a_job_nobody_knows(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fake / "qstat").write_text("#!/bin/sh\necho 'qstat: Unknown Job Id' >&2; exit 153\n")
    assert main(["job", "status", "1", "--scheduler", "pbs"]) == 1
    assert "does not know job 1" in capsys.readouterr().err
    assert main(["job", "pbs", "--submit", "--wait", "--", "true"]) == 1
    assert "is not known" in capsys.readouterr().err


def test_the_script_tells_what_the_scheduler_forgot(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fake / "qstat").write_text("#!/bin/sh\nexit 153\n")
    (fake / "run").mkdir()
    words = ["job", "pbs", "--submit", "--wait", "-o", "run", "--", "true"]
    (fake / "run" / ".job-exit-code").write_text("4711.pbs-01 9\n")
    assert main(words) == 9
    (fake / "run" / ".job-exit-code").write_text("12.pbs-01 9\n")
    assert main(words) == 1, "an older job's code is not this one's"
    assert "is not known" in capsys.readouterr().err
