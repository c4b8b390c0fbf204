"""What is wrong is said in three parts, before anything is submitted."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.errors import UsageError
from rankscope.jobs.sites import load_site, parse_site
from rankscope.jobs.spec import parse_walltime


@pytest.fixture(autouse=True)
def recording_fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sbatch and qsub that only note that they were called; no site of the machine's user."""
    calls = tmp_path / "calls"
    for name in ("sbatch", "qsub"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\necho 1\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return calls


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("slurm --nodes 0 -- true", "--nodes 0"),
        ("slurm --nodes two -- true", "--nodes two"),
        ("pbs --ppn -1 -- true", "--ppn"),
        ("pbs --walltime nonsense -- true", "--walltime nonsense is not a time"),
        ("pbs --walltime 0:00 -- true", "leaves no time"),
        ("slurm --site nowhere -- true", "there is no site 'nowhere'"),
        ("slurm --site polaris -- true", "is a machine with pbs"),
        ("slurm --name 'a b' -- true", "--name 'a b'"),
        ("slurm --account 'x\n#SBATCH' -- true", "--account"),
        ("slurm --env NOVALUE -- true", "has no value"),
        ("slurm --env 1X=3 -- true", "--env '1X' cannot be used"),
        ("slurm --tmpdir rel -- true", "--tmpdir 'rel'"),
        ("slurm --stats=kern;els -- true", "there is no table 'kern;els'"),
        ("slurm --rank 3 -- true", "--rank is not for a job"),
        ("slurm --directive exclusive -- true", "--directive 'exclusive'"),
        ("pbs --directive '-j oe\n#PBS' -- true", "is not a directive"),
        ("slurm --stdout 'a b' -- true", "--stdout 'a b'"),
        ("pbs --stdout out-%x -- true", "holds a % that is not %j"),
        ("slurm --gres 'gpu 4' -- true", "--gres 'gpu 4'"),
        ("slurm --ranks nobody -- true", "nobody"),
        ("slurm --tool nsys --with-stack -- true", "--with-stack"),
        ("slurm --tool nsys --per-node -- true", "--per-node is for torchrun"),
        ("slurm", "no COMMAND"),
        ("slurm true", "unrecognized arguments"),
    ],
)
def test_refused(words: str, said: str, recording_fakes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, *rest = shlex.split(words)
    assert main(["job", kind, "--submit", *rest]) == 2
    text = capsys.readouterr().err
    assert said in text
    assert "Traceback" not in text
    assert len(text.splitlines()) >= 2
    assert not recording_fakes.exists(), "nothing was submitted"


@pytest.mark.parametrize(("kind", "program"), [("slurm", "sbatch"), ("pbs", "qsub")])
def test_no_scheduler(
    kind: str,
    program: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert main(["job", kind, "--submit", "--script", "job.sh", "--", "true"]) == 1
    assert f"{program} is not on PATH" in capsys.readouterr().err
    assert not Path("job.sh").exists()
    assert main(["job", "status", "1"]) == 1
    assert "no scheduler" in capsys.readouterr().err


def test_a_scheduler_that_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2; exit 1\n")
    assert main(["job", "slurm", "--submit", "--", "true"]) == 1
    assert "sbatch refused the job\n  invalid partition" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:05:00", 300),
        ("30", 1800),
        ("5:00", 300),
        ("90s", 90),
        ("2h", 7200),
        ("1-01:00:00", 90000),
        ("90:00", 5400),
    ],
)
def test_walltime(text: str, seconds: int) -> None:
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "1:99", "1:60:00", "-5", "1:2:3", "5 h", "1-00:10"])
def test_no_walltime(text: str) -> None:
    with pytest.raises(UsageError):
        parse_walltime(text)


def test_a_users_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "config" / "rankscope" / "sites"
    folder.mkdir(parents=True)
    (folder / "lab.toml").write_text(
        '# ours\nscheduler = "slurm"\nppn = 8\nqueue = "gpu"\nmodules = ["cuda/12"]\n\n[env]\nNCCL_DEBUG = "WARN"\n'
    )
    assert main(["job", "slurm", "--site", "lab", "--nodes", "2", "--ppn", "4", "--", "true"]) == 0
    text = capsys.readouterr().out
    assert "--ntasks-per-node=4" in text, "an option comes before the site"
    assert "--partition=gpu" in text
    assert "module load cuda/12" in text
    assert "export NCCL_DEBUG=WARN" in text


def test_a_site_file() -> None:
    text = """
# a site
scheduler = "slurm"   # with a comment
ppn = 8
cpu-bind = "cores"
login = true
modules = ["use /soft # not a comment", "load conda"]

[env]  # for every rank
A = "1"
B_C = "x = y"
"""
    assert parse_site(text, "lab.toml") == {
        "scheduler": "slurm",
        "ppn": 8,
        "cpu_bind": "cores",
        "login": True,
        "modules": ["use /soft # not a comment", "load conda"],
        "env": {"A": "1", "B_C": "x = y"},
    }


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("ppn = four", "not a string"),
        ('ppn = "4"', "must be a number"),
        ("nonsense", "NAME = VALUE"),
        ('colour = "red"', "not one of"),
        ("modules = [1]", "list of strings"),
        ('conda = "base" x', "not a string"),
        ("login = 1", "true or false"),
        ('env = "A=1"', "not one of"),
    ],
)
def test_a_bad_site(line: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_site(f"# a site\n{line}\n", "lab.toml")
    assert caught.value.message == f"lab.toml, line 2: {line}"
    assert why in caught.value.why
    assert caught.value.hint


def test_shipped_sites_are_toml_too() -> None:
    tomllib = pytest.importorskip("tomllib")
    path = Path(__file__).parents[2] / "src/rankscope/jobs/sites/polaris.toml"
    assert {**tomllib.loads(path.read_text()), "env": {}} == load_site("polaris")
