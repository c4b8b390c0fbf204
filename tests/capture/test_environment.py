"""What the job finds of its own environment, and what of it is not for us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope import inapp
from rankscope.capture import run_folder
from rankscope.capture.launcher_command import bootstrap_environment, own_command
from rankscope.capture.plan import PLAN_VARIABLE, Plan
from rankscope.inapp.start_capture import clean_environment


@pytest.mark.parametrize("path", [None, "", "a", "a:", ":a:b"])
def test_the_jobs_pythonpath_comes_back_as_it_was(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {} if path is None else {"PYTHONPATH": path}
    env = bootstrap_environment(before, "{}", "RANKSCOPE_PLAN")
    bootstrap = env["PYTHONPATH"].split(":")[0]
    assert path or "" not in env["PYTHONPATH"].split(":"), "an empty part would be the current folder"
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        clean_environment(bootstrap)
        assert os.environ.get("PYTHONPATH") == path
    assert "RANKSCOPE_PLAN" not in os.environ


def test_the_inserted_command_is_not_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by its variables nor by what lies beside it."""
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    (tmp_path / "signal.py").write_text("raise SystemExit('theirs')")
    (tmp_path / "rankscope.py").write_text("raise SystemExit('theirs')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = [*own_command(), "--version"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("rankscope ")
    monkeypatch.setenv("PYTHONHOME", sys.prefix)
    assert "-E" not in own_command()


@pytest.mark.slow
def test_the_command_in_front_is_not_the_jobs(tmp_path: Path) -> None:
    """As pip installs it: a shell script beside the console script."""
    theirs, command = tmp_path / "theirs", tmp_path / "rankscope"
    theirs.mkdir()
    for name in ("rankscope", "signal", "typing", "random", "sitecustomize"):
        (theirs / f"{name}.py").write_text(f"print('their {name}')\n")
    command.write_bytes(Path(run_folder.__file__).with_name("rankscope.sh").read_bytes())
    console = f"#!{sys.executable}\nfrom rankscope.cli import run\nrun()\n"
    command.with_name("rankscope-python").write_text(console)
    for path in (command, command.with_name("rankscope-python")):
        path.chmod(0o755)
    shown = "echo $PYTHONPATH $PYTHONINSPECT $PYTHONEXECUTABLE $RANKSCOPE_PYTHONEXECUTABLE; exit 7"
    variables = {"PYTHONPATH": str(theirs), "PYTHONINSPECT": "1", "PYTHONEXECUTABLE": "/theirs"}
    done = subprocess.run(
        [command, "profile", "-q", "-o", "out", "sh", "-c", shown],
        cwd=tmp_path, env=os.environ | variables,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    pythonpath = f"{Path(inapp.__file__).parent / 'bootstrap'}:{theirs}"
    assert (done.stdout, done.returncode) == (f"{pythonpath} 1 /theirs\n", 7)


@pytest.mark.parametrize("module", ["rankscope", "typing"])
def test_a_job_with_a_module_of_that_name_gets_its_own(tmp_path: Path, module: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import {module}; print({module}.__file__)\n")
    (tmp_path / f"{module}.py").write_text("if __name__ == 'typing': raise SystemExit(3)\n")
    env = bootstrap_environment(os.environ | {"PYTHONPATH": str(tmp_path)}, Plan().to_json(), PLAN_VARIABLE)
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == (3 if module == "typing" else 0)
    assert module == "typing" or done.stdout == f"{tmp_path / 'rankscope.py'}\n"
    assert "not captured, the job goes on" in done.stderr
