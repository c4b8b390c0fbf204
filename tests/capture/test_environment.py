"""What the job finds of its own environment, and what of it is not for us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.capture.launcher_command import bootstrap_environment
from rankscope.capture.start import _module_option
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


def test_a_sitecustomize_of_the_job_is_not_for_the_inserted_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    for path, option in ((None, "-m"), ("", "-m"), (str(tmp_path), "-Em")):
        monkeypatch.delenv("PYTHONPATH", raising=False)
        if path is not None:
            monkeypatch.setenv("PYTHONPATH", path)
        assert _module_option() == option
    words = [sys.executable, _module_option(), "rankscope", "--version"]
    assert "theirs" not in subprocess.run(words, capture_output=True, text=True, check=True).stdout
    monkeypatch.setenv("PYTHONHOME", sys.prefix)
    assert _module_option() == "-m"
