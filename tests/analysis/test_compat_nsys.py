"""--compat nsys: what `nsys stats` prints, row by row and digit by digit."""

from __future__ import annotations

import csv
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DATA
from rankscope.analysis.compat import COMPAT
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.event_tables import kernels
from rankscope.store.run import Run
from rankscope.views import render

Open = Callable[[Path], Run]
Dataset = Callable[[str], Path]
NSYS = COMPAT["nsys"]
PRINTED = DATA / "nsys" / "gpt-h200" / "nsys-stats"


def compat_csv(run: Run, name: str, scope: Scope | None = None, by: str | None = None) -> list[list[str]]:
    return list(csv.reader(render(NSYS[name].analyse(run, scope or Scope(), by), "csv").splitlines()))


@pytest.mark.parametrize("name", sorted(path.name.partition(".")[0] for path in PRINTED.iterdir()))
def test_every_table_nsys_printed_is_reproduced_row_by_row(
    name: str, dataset: Dataset, open_real: Open
) -> None:
    ours = render(NSYS[name].analyse(open_real(dataset("nsys/gpt-h200/gpt.sqlite")), Scope(), None), "csv")
    printed = lzma.decompress((PRINTED / f"{name}.csv.xz").read_bytes()).decode()
    assert ours.rstrip("\n").splitlines() == printed.rstrip("\n").splitlines()


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


def test_mpi_events_of_an_older_version_are_found_in_their_nvtx_domain(
    dataset: Dataset, open_real: Open
) -> None:
    run = open_real(dataset("public/pipit/saxpy-mpi-cuda_nsys_perlmutter0.sqlite"))
    heading, *rows = compat_csv(run, "mpi_event_trace")
    assert heading[:4] == ["Start (ns)", "End (ns)", "Duration (ns)", "Event"]
    assert [row[3] for row in rows].count("MPI_Send") == 10
    assert rows[0][:8] == ["65117824", "710796807", "645678983", "MPI_Init", "1230493", "1230493", "", "0"]


def test_two_ranks_stand_in_one_table_or_apart(dataset: Dataset, open_real: Open) -> None:
    run = open_real(dataset("nsys/seqpar-gloo2"))
    together = compat_csv(run, "cuda_gpu_mem_time_sum")
    apart = compat_csv(run, "cuda_gpu_mem_time_sum", by="rank")
    assert apart[0] == ["Rank", *together[0]]
    for operation in ("[CUDA memset]", "[CUDA memcpy Host-to-Device]"):
        total = sum(int(row[1]) for row in together[1:] if row[-1] == operation)
        assert total == sum(int(row[2]) for row in apart[1:] if row[-1] == operation) > 0


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
