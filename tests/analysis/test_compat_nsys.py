"""--compat nsys: what `nsys stats` prints, row by row and digit by digit."""

from __future__ import annotations

import csv
import lzma
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from conftest import DATA, open_trace
from rankscope.analysis.compat import COMPAT
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.event_tables import kernels, runtime_api
from rankscope.timeline.run import Run
from rankscope.views import render

pytestmark = pytest.mark.usefixtures("without_workers")

Open = Callable[[Path], Run]
Dataset = Callable[[str], Path]
NSYS = COMPAT["nsys"]
PRINTED = DATA / "nsys" / "gpt-h200" / "nsys-stats"


def compat_csv(run: Run, name: str, scope: Scope | None = None, by: str | None = None) -> list[list[str]]:
    return list(csv.reader(render(NSYS[name].analyse(run, scope or Scope(), by), "csv").splitlines()))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name.partition(".")[0] for path in PRINTED.iterdir()))
def test_every_table_nsys_printed_is_reproduced_row_by_row(
    name: str, dataset: Dataset, open_real: Open
) -> None:
    ours = render(NSYS[name].analyse(open_real(dataset("nsys/gpt-h200/gpt.sqlite")), Scope(), None), "csv")
    printed = lzma.decompress((PRINTED / f"{name}.csv.xz").read_bytes()).decode()
    assert ours.rstrip("\n").splitlines() == printed.rstrip("\n").splitlines()


def edited(dataset: Dataset, path: Path, *statements: str) -> Run:
    """gpt-h200 with changes in its tables."""
    path.write_bytes(dataset("nsys/gpt-h200/gpt.sqlite").read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return open_trace(path)


def test_calls_with_and_without_a_version(dataset: Dataset, tmp_path: Path) -> None:
    """nsys 2023.4 prints two rows of one name in cuda_api_sum and one row in cuda_api_gpu_sum; our api has one."""
    versioned = "(SELECT id FROM StringIds WHERE value = 'cudaMemsetAsync_v3020')"
    run = edited(
        dataset,
        tmp_path / "gpt.sqlite",
        "INSERT INTO StringIds (id, value) SELECT max(id) + 1, 'cudaMemsetAsync' FROM StringIds",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = (SELECT max(id) FROM StringIds) WHERE rowid IN "
        f"(SELECT rowid FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE nameId = {versioned} LIMIT 50)",
    )
    assert [row for row in compat_csv(run, "cuda_api_sum") if row[-1].startswith("cudaMemset")] == [
        ["7.2", "873455", "146", "5982.6", "5434.5", "1529", "19213", "3207.4", "cudaMemsetAsync"],
        ["2.4", "287121", "50", "5742.4", "3942.5", "1445", "23033", "4565.4", "cudaMemsetAsync"],
    ]
    (row,) = [row for row in compat_csv(run, "cuda_api_gpu_sum") if row[-1].startswith("cudaMemset")]
    assert row[1:3] == ["1160576", "196"]
    (ours,) = [row for row in runtime_api(run, Scope()).rows if row["name"].startswith("cudaMemset")]
    assert (ours["name"], ours["calls"], ours["total_ns"]) == ("cudaMemsetAsync", 196, 1_160_576)


def test_the_standard_deviation_of_no_queue_time_is_zero_as_in_nsys(dataset: Dataset, tmp_path: Path) -> None:
    """A kernel of which no launch waited in the queue: nsys prints ',,,,0.0'."""
    run = edited(
        dataset,
        tmp_path / "gpt.sqlite",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start - 1000000000, end = end - 1000000000",
    )
    heading, *rows = compat_csv(run, "cuda_kern_exec_sum")
    first = heading.index("QAvg (ns)")
    assert rows and {tuple(row[first : first + 5]) for row in rows} == {("", "", "", "", "0.0")}


def test_a_table_in_the_terminal_looks_like_nsys_own(dataset: Dataset, open_real: Open) -> None:
    run = open_real(dataset("nsys/gpt-h200/gpt.sqlite"))
    assert render(NSYS["cuda_gpu_mem_size_sum"].analyse(run, Scope(), None)).splitlines() == [
        "",
        " ** CUDA GPU MemOps Summary (by Size) (cuda_gpu_mem_size_sum):",
        "",
        " Total (MB)  Count  Avg (MB)  Med (MB)  Min (MB)  Max (MB)  StdDev (MB)           Operation          ",
        " ----------  -----  --------  --------  --------  --------  -----------  ----------------------------",
        "      0.262      4     0.066     0.066     0.066     0.066        0.000  [CUDA memcpy Host-to-Device]",
        "      0.140    196     0.001     0.000     0.000     0.016        0.002  [CUDA memset]               ",
    ]


def test_a_report_without_data_says_what_records_it(dataset: Dataset, open_real: Open) -> None:
    run = open_real(dataset("nsys/gpt-h200/gpt.sqlite"))
    assert "SKIPPED: no OS runtime data: nsys profile -t osrt" in render(
        NSYS["osrt_sum"].analyse(run, Scope(), None)
    )


@pytest.mark.slow
def test_two_ranks_stand_in_one_table_or_apart(dataset: Dataset, open_real: Open) -> None:
    run = open_real(dataset("nsys/seqpar-gloo2"))
    together = compat_csv(run, "cuda_gpu_mem_time_sum")
    apart = compat_csv(run, "cuda_gpu_mem_time_sum", by="rank")
    assert apart[0] == ["Rank", *together[0]]
    for operation in ("[CUDA memset]", "[CUDA memcpy Host-to-Device]"):
        total = sum(int(row[1]) for row in together[1:] if row[-1] == operation)
        assert total == sum(int(row[2]) for row in apart[1:] if row[-1] == operation) > 0


@pytest.mark.slow
def test_kineto_traces_answer_too(open_real: Open) -> None:
    """The same kernels as our own report; copies under nsys's names; launches found."""
    run = open_real(DATA / "gpt-h200-stack" / "gpt.pt.trace.json.gz")
    ours = {row["name"]: (row["total_ns"], row["instances"]) for row in kernels(run, Scope()).rows}
    theirs = {row[-1]: (int(row[1]), int(row[2])) for row in compat_csv(run, "cuda_gpu_kern_sum")[1:]}
    assert theirs == ours
    operations = {row[-1] for row in compat_csv(run, "cuda_gpu_mem_time_sum")[1:]}
    assert "[CUDA memset]" in operations and "[CUDA memcpy Unknown]" not in operations
    for name in ("cuda_api_sum", "cuda_gpu_trace", "cuda_kern_exec_trace", "nvtx_sum", "nvtx_gpu_proj_sum"):
        assert len(compat_csv(run, name)) > 1, name


def test_steps_leave_out_what_is_not_in_them(dataset: Dataset, open_real: Open) -> None:
    run = open_real(dataset("nsys/gpt-h200/gpt.sqlite"))
    whole = compat_csv(run, "cuda_gpu_trace")
    one = compat_csv(run, "cuda_gpu_trace", Scope(steps=(1, 1)))
    assert 0 < len(one) - 1 < len(whole) - 1
