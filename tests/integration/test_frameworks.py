"""Captures that a framework or torch itself starts: the scripts and lines of docs/frameworks, as they stand there."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from pathlib import Path

import pytest

from integration.jobs import (
    BIN,
    NOT_COMPILED,
    PROFILE,
    PYTHON,
    TRAIN,
    environment,
    manifests,
    needs_torch,
    run,
)
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = [pytest.mark.slow, needs_torch]

ROOT = Path(__file__).parents[2]
TRAINS = """
import os, subprocess, sys
import torch

def main(rank):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=os.environ["PET_MASTER_PORT"])
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
    torch.distributed.destroy_process_group()

"""
SPAWNS = f"""{TRAINS}
if __name__ == "__main__":
    torch.multiprocessing.spawn(main, nprocs=2)
"""
STARTS = f"""{TRAINS}
rank = int(os.environ.setdefault("LOCAL_RANK", "0"))
if rank == 0:
    env = dict(os.environ, LOCAL_RANK="1", NODE_RANK="0")
    second = subprocess.Popen([sys.executable, __file__], env=env)
    subprocess.run([sys.executable, "-c", "import os; assert 'RANKSCOPE_PLAN' not in os.environ"], check=True)
main(rank)
if rank == 0:
    assert second.wait() == 0
"""


@pytest.fixture
def autoloading(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine on which rankscope-autoload is installed."""
    installed = tmp_path / "installed"
    about = installed / "rankscope_autoload-0.2.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(ROOT / "autoload" / "rankscope_autoload.py", installed)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rankscope-autoload\nVersion: 0.2.0\n")
    group, line = re.search(  # type: ignore[union-attr]
        r'entry-points."(.+?)"\]\n(.+)', (ROOT / "autoload" / "pyproject.toml").read_text()
    ).groups()
    (about / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")
    return environment(PYTHONPATH=str(installed))


def steps(folder: Path) -> list[tuple[int, int]]:
    """Rank and step of every step in the run."""
    rows = Run(ingest([folder])).rows("SELECT DISTINCT rank, step FROM steps ORDER BY ALL")
    return [(rank, step) for rank, step in rows]


BOTH = [(rank, step) for rank in (0, 1) for step in (4, 5, 6)]


@pytest.mark.thorough
def test_torch_starts_a_capture(tmp_path: Path, autoloading: dict[str, str]) -> None:
    script = [str(BIN / "torchrun"), "--nproc-per-node", "2", TRAIN, "--ddp"]
    run(script, tmp_path, env={**autoloading, "RANKSCOPE": "profile --steps 4:6 -o a"})
    run([*PROFILE, "--steps", "4:6", "-o", "b", *script], tmp_path)
    assert steps(tmp_path / "a") == steps(tmp_path / "b") == BOTH, "as with rankscope in front"


@pytest.mark.thorough
def test_ranks_that_the_program_spawns(tmp_path: Path, autoloading: dict[str, str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(NOT_COMPILED + SPAWNS)
    run([PYTHON, str(script)], tmp_path, env={**autoloading, "RANKSCOPE": "profile --steps 4:6 -o a"})
    assert steps(tmp_path / "a") == BOTH


@pytest.mark.thorough
def test_ranks_that_the_program_starts_as_lightning_does(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NOT_COMPILED + STARTS)
    run([*PROFILE, "--steps", "4:6", "-o", "a", PYTHON, str(script)], tmp_path)
    assert steps(tmp_path / "a") == BOTH


@pytest.mark.thorough
def test_watching(tmp_path: Path, autoloading: dict[str, str]) -> None:
    run([PYTHON, TRAIN], tmp_path, env={**autoloading, "RANKSCOPE": "watch -o a"})
    assert (tmp_path / "a" / "telemetry" / "rank-00000.ring").exists()
    assert manifests(tmp_path / "a")[0]["windows"] == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", ""),
        ("profil", "'profil' is neither watch nor profile"),
        ("profile --tool nsys", "--tool nsys cannot start inside a running program"),
        ("profile --steps 4:6 python train.py", "'python' is not an option of rankscope profile"),
        ("profile --stepz 4", "--stepz"),
    ],
)
@pytest.mark.thorough
def test_words_that_capture_nothing(
    tmp_path: Path, autoloading: dict[str, str], words: str, line: str
) -> None:
    modules = "import sys, torch; print([name for name in sys.modules if name.startswith('rankscope.')])"
    done = run([PYTHON, "-c", modules], tmp_path, env={**autoloading, "RANKSCOPE": words})
    ours = [text for text in done.stderr.splitlines() if text.startswith("rankscope: ")]
    assert len(ours) == bool(line) and line in "".join(ours)
    if not words:
        assert done.stdout.strip() == "[]"
    assert {path.name for path in tmp_path.iterdir()} == {"installed"}


@pytest.mark.thorough
def test_rankscope_in_front_goes_before_the_variable(tmp_path: Path, autoloading: dict[str, str]) -> None:
    env = {**autoloading, "RANKSCOPE": "watch -o b"}
    run([*PROFILE, "--steps", "4:6", "-o", "a", PYTHON, TRAIN], tmp_path, env=env)
    assert steps(tmp_path / "a") == BOTH[:3]
    assert not (tmp_path / "b").exists()


FRAMEWORKS = {"lightning": "lightning", "huggingface": "transformers", "accelerate": "accelerate"}


@pytest.mark.thorough
@pytest.mark.parametrize("page", FRAMEWORKS)
def test_page(tmp_path: Path, page: str) -> None:
    """The script of the page, and its commands: two ranks, three steps each, as with `rankscope profile` in front."""
    if importlib.util.find_spec(FRAMEWORKS[page]) is None:
        pytest.skip(f"{FRAMEWORKS[page]} is not installed: tests/requirements-thorough.txt")
    text = (ROOT / "docs" / "frameworks" / f"{page}.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
    script = next(code for language, code in blocks if language == "python")
    lines = next(code for language, code in blocks if not language).splitlines()
    (tmp_path / "train.py").write_text(script)
    for line in lines:
        words = shlex.split(line)
        variables = dict(word.split("=", 1) for word in words if re.match("[A-Z]+=", word))
        run(words[len(variables) :], tmp_path, env=environment(**variables))
    words = shlex.split(lines[0].rpartition('"')[2])  # without the variable
    runs = tmp_path / "runs"
    run([*PROFILE, "--steps", "4:6", "-o", "runs/b", *words], tmp_path)
    run(words, tmp_path, env=environment(RANKSCOPE="watch -o runs/c"))
    assert steps(runs / "a") == steps(runs / "b") == BOTH
    assert ops(runs / "a") == ops(runs / "b")
    assert sorted(path.name for path in runs.glob("c/telemetry/*.ring")) == RINGS
    assert ("evaluation" in ranges(runs / "a")) == (page == "huggingface")


RINGS = ["rank-00000.ring", "rank-00001.ring"]


def ops(folder: Path) -> dict[tuple[int, int, str], int]:
    """How often each op ran, by rank and step."""
    rows = Run(ingest([folder])).rows(
        "SELECT rank, step, name, count(*) FROM slices WHERE name LIKE 'aten::%' GROUP BY ALL"
    )
    return {tuple(key): count for *key, count in rows}


def ranges(folder: Path) -> set[str]:
    """The names of the ranges on rank 0."""
    rows = Run(ingest([folder])).rows("SELECT DISTINCT name FROM slices WHERE rank = 0")
    return {name for (name,) in rows}


FABRIC = """
import lightning
import torch

fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
model, optimizer = fabric.setup(layer := torch.nn.Linear(32, 2), torch.optim.SGD(layer.parameters(), lr=0.1))
for _ in range(8):
    fabric.backward(model(torch.randn(4, 32)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.thorough
def test_fabric(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(FABRIC)
    run([PYTHON, "train.py"], tmp_path, env=environment(RANKSCOPE="profile --steps 4:6 -o a"))
    run([*PROFILE, "--steps", "4:6", "-o", "b", PYTHON, "train.py"], tmp_path)
    assert steps(tmp_path / "a") == steps(tmp_path / "b") == BOTH
    assert ops(tmp_path / "a") == ops(tmp_path / "b")


@pytest.mark.thorough
def test_profiler_of_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    text = (ROOT / "docs" / "frameworks" / "lightning.md").read_text()
    script = re.search(r"```python\n(.*?)```", text, re.S)
    assert script is not None
    code = script[1].replace(
        "logger=False", 'logger=False, profiler=Profiler("profile --steps 4:6 -o runs/a")'
    )
    (tmp_path / "train.py").write_text("from rankscope.lightning import Profiler\n" + code)
    run([PYTHON, "train.py"], tmp_path)
    assert steps(tmp_path / "runs" / "a") == BOTH
    assert "run_training_batch" in ranges(tmp_path / "runs" / "a")
