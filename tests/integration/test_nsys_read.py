"""What the real nsys writes here and now: read as it lies there, and the same tables as nsys's own, digit by digit."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from integration.jobs import PYTHON, environment, needs, run
from rankscope.analysis.compat import COMPAT
from rankscope.analysis.core.scope import Scope
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.views import render

INSTALLED = Path(sys.prefix) / "nsight" / "bin" / "nsys"
NSYS = INSTALLED if INSTALLED.exists() else Path(shutil.which("nsys") or INSTALLED)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not NSYS.exists(), reason="the real nsys is not installed (tests/integration/install-nsight.sh)"
    ),
    pytest.mark.skipif(importlib.util.find_spec("nvtx") is None, reason="the package nvtx is not installed"),
    needs("mpirun.openmpi", "openmpi-bin"),
]

JOB = [PYTHON, str(Path(__file__).with_name("nvtx_ranges_job.py"))]
PROFILE = ["nsys", "profile", "--sample=none", "--cpuctxsw=none", "--trace=nvtx,osrt,mpi"]
SECRET = "live-secret-of-the-test"
REPORTS = ("nvtx_sum", "nvtx_pushpop_sum", "osrt_sum")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks under OpenMPI, a report each, names that do not say the rank's place in the world."""
    folder = tmp_path_factory.mktemp("recorded")
    words = ["mpirun.openmpi", "-n", "2", "--oversubscribe", *PROFILE, "--mpi-impl=openmpi"]
    words += ["--output=report_%q{OMPI_COMM_WORLD_RANK}", *JOB, "--mpi"]
    run(words, folder, env=with_nsys(MY_API_TOKEN=SECRET))
    return folder


@pytest.fixture(scope="module")
def opened(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The reports as they lie there: .nsys-rep, exported on the way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKSCOPE_NSYS", str(NSYS))
        return Run(ingest([recorded], Options(cache=tmp_path_factory.mktemp("cache"))))


def with_nsys(env: dict[str, str] | None = None, **more: str) -> dict[str, str]:
    """An environment in which nsys is on the PATH."""
    env = env or environment()
    return {**env, "PATH": f"{NSYS.parent}{os.pathsep}{env['PATH']}", **more}


def nsys_prints(export: Path, name: str) -> list[str]:
    """The csv of one report; nsys's own lines stand before it."""
    done = subprocess.run(
        [NSYS, "stats", "--quiet", "--report", name, "--format", "csv", export],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        timeout=120,
    )
    return done.stdout.strip().splitlines()


def test_ranks_are_read_from_the_reports(opened: Run) -> None:
    assert [(e.rank, e.rank_source) for e in opened.segments] == [
        (0, "recorded environment"),
        (1, "recorded environment"),
    ]
    assert opened.rows("SELECT rank, count(*) FROM steps GROUP BY rank ORDER BY rank") == [(0, 3), (1, 3)]


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("name", REPORTS)
def test_our_tables_are_those_nsys_prints(name: str, opened: Run, recorded: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        export = tmp_path / f"{rank}.sqlite"
        report = recorded / f"report_{rank}.nsys-rep"
        subprocess.run(
            [NSYS, "export", "--type=sqlite", f"--output={export}", report], check=True, capture_output=True
        )
        printed = nsys_prints(export, name)
        ours = render(
            COMPAT["nsys"][name].analyse(opened, Scope(frozenset({rank})), None), "csv"
        ).splitlines()
        assert len(printed) > 2
        assert ours == printed


def test_a_function_has_one_row_over_all_ranks(opened: Run) -> None:
    """Each report numbers its strings itself."""
    calls = COMPAT["nsys"]["osrt_sum"].analyse
    both, ones = (
        calls(opened, Scope(), None),
        [calls(opened, Scope(frozenset({rank})), None) for rank in (0, 1)],
    )
    names = [row["Name"] for row in both.rows]
    assert sorted(names) == sorted({row["Name"] for one in ones for row in one.rows})
    assert sum(row["Num Calls"] for row in both.rows) == sum(
        row["Num Calls"] for one in ones for row in one.rows
    )


def entangled(source: Path, target: Path, seed: int) -> Path:
    """A real export with ranges nested, crossing, in domains and never closed, a second process, launches lost."""
    chance = random.Random(seed)
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target)) as connection:
        threads = [
            row[0] for row in connection.execute("SELECT DISTINCT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME")
        ]
        ((low, high),) = connection.execute("SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_RUNTIME")
        rows: list[tuple[object, ...]] = [(high + 5, None, 34, "late mark", threads[0], None, 0)]

        def nest(thread: int, start: int, stop: int, depth: int) -> None:
            if depth > 4 or stop - start < 2000:
                return
            cuts = sorted(chance.sample(range(start + 1, stop - 1), 6))
            for begin, end in zip(cuts[::2], cuts[1::2], strict=True):
                text = chance.choice(["fwd", "bwd", "with, comma", "αβ"])
                closed = end if chance.random() > 0.01 else None
                rows.append((begin, closed, 59, text, thread, None, chance.choice([0, 0, 1])))
                nest(thread, begin, end, depth + 1)

        for thread in threads:
            nest(thread, low, high, 0)
        for _ in range(30):
            begin = chance.randint(low, high)
            elsewhere = chance.choice([None, *threads])
            rows.append(
                (begin, chance.randint(begin, high), 60, "crossing", chance.choice(threads), elsewhere, 0)
            )
        chance.shuffle(rows)
        connection.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, endGlobalTid, domainId) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        for table, process in (("KERNEL", "globalPid"), ("MEMSET", "globalPid"), ("RUNTIME", "globalTid")):
            name = f"CUPTI_ACTIVITY_KIND_{table}"
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            moved = {process: " + (1 << 24)", "start": " + 137", "end": " + 137"}
            values = ", ".join(f'"{column}"{moved.get(column, "")}' for column in columns)
            connection.execute(f"INSERT INTO {name} SELECT {values} FROM {name} WHERE rowid % 3 = 0")
        connection.execute(
            "INSERT INTO TARGET_INFO_CUDA_CONTEXT_INFO SELECT nullStreamId, hwId, vmId, processId + 1, "
            "deviceId, contextId, parentContextId, isGreenContext FROM TARGET_INFO_CUDA_CONTEXT_INFO"
        )
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE rowid % 17 = 0")
        connection.commit()
    return target


@pytest.mark.thorough
def test_sixteen_tables_of_a_complicated_export(dataset: Callable[[str], Path], tmp_path: Path) -> None:
    export = entangled(dataset("nsys/gpt-h200/gpt.sqlite"), tmp_path / "x.sqlite", seed=11)
    names = [name for name in COMPAT["nsys"] if name != "osrt_sum"]
    words: list[str | Path] = [
        NSYS,
        "stats",
        "--report",
        ",".join(names),
        "--format",
        "csv",
        "--output",
        tmp_path / "t",
        export,
    ]
    subprocess.run(words, check=True, capture_output=True, env=environment(), timeout=120)
    opened = Run(ingest([export], Options(cache=tmp_path / "cache")))
    for name in names:
        printed = (tmp_path / f"t_{name}.csv").read_text(encoding="utf-8").strip().splitlines()
        ours = render(COMPAT["nsys"][name].analyse(opened, Scope(), None), "csv").strip().splitlines()
        assert ours == printed, name


def test_host_communication_is_seen(opened: Run) -> None:
    from rankscope.analysis.core.rank_activity import host_collectives

    assert {rank: len(times.start) for rank, times in host_collectives(opened).items()} == {0: 3, 1: 3}


@pytest.mark.thorough
def test_scrub_of_a_real_export(recorded: Path, tmp_path: Path) -> None:
    export = tmp_path / "x.sqlite"
    report = recorded / "report_1.nsys-rep"
    subprocess.run(
        [NSYS, "export", "--type=sqlite", f"--output={export}", report], check=True, capture_output=True
    )
    assert SECRET.encode() in export.read_bytes()
    run([PYTHON, "-m", "rankscope", "scrub", "x.sqlite"], tmp_path)
    content = (tmp_path / "x.rank-1.scrubbed.sqlite").read_bytes()
    assert SECRET.encode() not in content and b"MY_API_TOKEN" not in content
    stats = [PYTHON, "-m", "rankscope", "stats", "x.rank-1.scrubbed.sqlite", "-r", "ops.annotations", "-q"]
    assert "inner, with a comma" in run(stats, tmp_path).stdout


@pytest.mark.thorough
def test_one_report_around_a_launcher_holds_its_ranks(tmp_path: Path) -> None:
    words = [*PROFILE, "--mpi-impl=openmpi", "--output=node", "mpirun.openmpi", "-n", "2", "--oversubscribe"]
    run([*words, *JOB, "--mpi"], tmp_path, env=with_nsys())
    stats = [PYTHON, "-m", "rankscope", "stats", "node.nsys-rep", "-r", "steps", "--format", "csv", "-q"]
    rows = run(stats, tmp_path, env=with_nsys()).stdout.splitlines()[1:]
    assert sorted({row.split(",")[0] for row in rows}) == ["0", "1"]
    assert len(rows) == 6


@pytest.mark.thorough
def test_ranks_of_reports_recorded_under_srun(slurm: dict[str, str], tmp_path: Path) -> None:
    words = ["srun", "-n", "2", "-N", "2", *PROFILE[:-1], "--trace=nvtx", "--output=x%q{SLURM_PROCID}y", *JOB]
    run(words, tmp_path, env=with_nsys(slurm))
    stats = [
        PYTHON,
        "-m",
        "rankscope",
        "query",
        ".",
        "SELECT DISTINCT rank, rank_source FROM segments ORDER BY 1",
    ]
    rows = run([*stats, "--format", "csv", "-q"], tmp_path, env=with_nsys()).stdout.splitlines()[1:]
    assert rows == ["0,recorded environment", "1,recorded environment"]


def test_a_report_of_a_newer_nsys_is_refused(shared: Path, tmp_path: Path) -> None:
    report = shared / "public" / "jax-toolbox" / "pdl_2p2c.nsys-rep"
    words = [PYTHON, "-m", "rankscope", "stats", str(report), "--nsys", str(NSYS), "--cache", str(tmp_path)]
    done = run(words, tmp_path, check=False)
    assert done.returncode == 1 and "too new for this nsys" in done.stderr
