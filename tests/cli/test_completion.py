"""What the Tab key completes, in the shells themselves and by the words so far."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import DEMO
from rankscope.analysis import REPORTS
from rankscope.analysis.diff.samples import REPORTS as COMPARED
from rankscope.cli import COMMANDS
from rankscope.cli.completion import SCRIPTS, candidates

LONGEST_S = 60
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(rankscope completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -u -D; eval "$(rankscope completion zsh)"'),
    "fish": (["fish", "--no-config", "-i"], "rankscope completion fish | source"),
}


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell} (tests/install-packages.sh installs it)")
    command, script = SHELLS[shell]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "COLUMNS": "200"}
    shutil.copytree(DEMO / "run", tmp_path / "slow job")
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvpe(command[0], command, env)
    try:
        typed(terminal, f"{script}; printf 'rea''dy\\n'\n", r"ready\r?\n")
        for words, completed in (
            ("rankscope st\t", r"rankscope stats "),
            ("rankscope stats -r host_\t", r"-r host_cpu"),
            ("rankscope stats --form\t", r"--format "),
            ("rankscope stats --format ma\t", r"--format markdown"),
            ("rankscope stats --format=ma\t", r"--format=markdown"),
            ("rankscope stats slo\t", r"(slow\\ job|'slow job')"),
        ):
            typed(terminal, words, completed)
            typed(terminal, "\x15 printf 'on''e\\n'\n", r"one\r?\n")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def typed(terminal: int, keys: str, expected: str) -> None:
    """Type, and wait for what the shell shows."""
    os.write(terminal, keys.encode())
    shown, last = "", time.monotonic() + LONGEST_S
    while not re.search(expected, shown):
        assert time.monotonic() < last, f"{keys!r} shows {shown!r}"
        if select.select([terminal], [], [], 1)[0]:
            text = os.read(terminal, 65536).decode(errors="replace")
            shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\x08", "", text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["st"], {"stats"}),
        (["--v"], {"--version"}),
        (["stats", "-r", "stragglers."], {"stragglers.op_differences", "stragglers.micro_batches"}),
        (["stats", "--report=faults.", "x", "-r", "kernels,li"], {"kernels,list"}),
        (["stats", "--format=c"], {"--format=csv"}),
        (["stats", "--format", "=", "c"], {"csv"}),
        (["stats", "--format", "="], {"csv", "json", "markdown", "table"}),
        (["stats", "--f"], {"--fail-on", "--format", "--from-events"}),
        (["diff", "-r", "st"], {"stacks", "steps"}),
        (["job", "sl"], {"slurm"}),
        (["job", "slurm", "--wallt"], {"--walltime"}),
        (["profile", "--tool", "n"], {"nsys", "ncu"}),
        (["profile", "--tool", "nsys", "--dry"], {"--dry-run"}),
        (["profile", "--tool", "nsys", "python", "--dry"], set()),
        (["help", "data-l"], {"data-loading"}),
        (["help", "evid"], {"evidence id"}),
        (["completion", "z"], {"zsh"}),
        (["frobnicate", "x"], set()),
    ],
)
def test_candidates(words: list[str], expected: set[str]) -> None:
    assert candidates(words) == expected


def test_the_lists_are_those_of_the_commands() -> None:
    assert candidates(["stats", "-r", ""]) == {*REPORTS, "all", "list"}
    assert candidates(["diff", "-r", ""]) == {*COMPARED, "all", "stacks"}
    assert {*COMMANDS} <= candidates([""])


def test_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runs/a", "runs/b", "c"):
        shutil.copytree(DEMO / "run", tmp_path / name)
    (tmp_path / "runs" / "no-run").mkdir()
    monkeypatch.chdir(tmp_path)
    assert candidates(["stats", ""]) == {"runs/a", "runs/b", "c"}
    assert candidates(["diff", "c", "runs/"]) == {"runs/a", "runs/b"}
    assert candidates(["view", f"{tmp_path}/runs/b"]) == {f"{tmp_path}/runs/b"}
    assert candidates(["run"]) == {"runs/a", "runs/b"}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_completing_imports_no_library(shell: str) -> None:
    program = (
        "import sys; from rankscope.cli import main; main(sys.argv[1:]); "
        "print(sorted({'numpy', 'duckdb', 'isal', 'isal.igzip', 'rankscope.store'} & set(sys.modules)))"
    )
    for words in (["stats", "-r", "fau"], ["help", "MF"], ["diff", "x"], ["view", "--"]):
        command = [sys.executable, "-c", program, "completion", shell, *words]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert lines[-1] == "[]"


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_are_right_for_their_shell(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell} (tests/install-packages.sh installs it)")
    done = subprocess.run([shell, "-n"], input=SCRIPTS[shell], text=True, capture_output=True, check=True)
    assert done.stderr == ""
