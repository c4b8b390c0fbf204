"""The mini-benchmark's arithmetic, its reference, its meeting point and its report, without any process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.bench import sweep
from rankscope.bench.ranks.world import first_of_nodelist, meeting_point
from rankscope.bench.seqpar.config import Config
from rankscope.bench.seqpar.measure import median, spread
from rankscope.bench.seqpar.report_text import report_text
from rankscope.capture.rank import detect
from rankscope.cli import main
from rankscope.collective_kinds import bus_factor
from rankscope.devices import peak_tflops
from rankscope.errors import RankscopeError, UsageError


@pytest.mark.parametrize(
    ("config", "ranks", "message"),
    [
        (Config(sequence=10, hidden=8), 4, "S = 10 cannot be split over 4 ranks"),
        (Config(sequence=8, hidden=9), 2, "H = 9 cannot be split over 2 ranks"),
        (Config(sequence=12, hidden=4, chunks=4), 2, "6 rows of a rank cannot be split into 4 chunks"),
    ],
)
def test_what_cannot_be_split_is_refused_in_three_parts(config: Config, ranks: int, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        config.check(ranks)
    assert caught.value.why
    assert "Give " in caught.value.hint


def test_bytes_and_flops_are_those_of_the_conventions() -> None:
    config = Config(sequence=4608, hidden=9216, precision="bfloat16")
    assert config.part_bytes() == 4608 * 9216 * 2
    assert config.part_flops(4) == 2 * 4608 * 9216 * 2304
    assert [bus_factor("all_gather", ranks) for ranks in (1, 2, 4)] == [0, 0.5, 0.75]


def test_peaks_follow_device_precision_and_tf32() -> None:
    assert peak_tflops("NVIDIA H200", "bfloat16") == 989
    assert peak_tflops("NVIDIA H200", "float32") == 67
    assert peak_tflops("NVIDIA H200", "float32", tf32=True) == 494
    assert peak_tflops("NVIDIA H100 PCIe", "bfloat16") == 756
    assert peak_tflops("CPU (1 thread a rank)", "float32") is None


def test_statistics() -> None:
    assert spread([4, 1, 3]) == {"total_ns": 8, "mean_ns": 3, "p50_ns": 3, "min_ns": 1, "max_ns": 4}
    assert median([4, 1, 3, 2]) == 2


@pytest.mark.parametrize(
    ("text", "first"),
    [("n[1-2]", "n1"), ("n7", "n7"), ("gpu[007,009]-ib,m3", "gpu007-ib"), ("a,b", "a")],
)
def test_the_first_node_of_a_list(text: str, first: str) -> None:
    assert first_of_nodelist(text) == first


_OMPI = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")


def test_where_ranks_meet(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("host-a\nhost-a\nhost-b\n")
    two_nodes = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    one_node = {**two_nodes, "MPI_LOCALNRANKS": "4"}

    def where(env: dict[str, str]) -> str:
        return meeting_point(env, detect(env))

    mpirun = {
        f"OMPI_COMM_WORLD_{name}": value for name, value in zip(_OMPI, ("3", "4", "1", "2"), strict=True)
    }
    mpirun["OMPI_MCA_orte_hnp_uri"] = "685768704.0;tcp://10.1.2.3,10.9.2.3:53965;tcp6://[fd00::2]:46599"
    out_of_sight = {"PBS_JOBID": "4711.pbs", "PBS_NODEFILE": str(tmp_path / "on-the-first-node-only")}
    assert where({**mpirun, **out_of_sight}).startswith("tcp://10.1.2.3:")
    assert where({**mpirun, **out_of_sight, "PBS_NODEFILE": str(nodes)}).startswith("tcp://host-a:")
    with pytest.raises(RankscopeError, match="do not know where to meet"):
        where(mpirun)  # outside of a scheduler mpirun may run elsewhere
    assert where({**two_nodes, "MASTER_ADDR": "h", "MASTER_PORT": "99"}) == "tcp://h:99"
    assert where(one_node).startswith("file:///")
    in_pbs = {**two_nodes, "PBS_NODEFILE": str(nodes), "PBS_JOBID": "12.server"}
    assert where(in_pbs).startswith("tcp://host-a:")
    assert where(in_pbs) == where({**in_pbs, "PMI_RANK": "3"})
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    assert where(torchrun) == "env://"
    with pytest.raises(RankscopeError, match="do not know where to meet") as caught:
        where(two_nodes)
    assert "MASTER_ADDR" in caught.value.hint


def sample_report(ranks: int = 2) -> dict[str, Any]:
    times = spread([2_000_000, 3_000_000])
    names = ("ALLGATHER", "matmul1", "matmul2", "REDUCE_SCATTER")
    collective = {"kind": "collective", "bytes": 8, "p50_ns": 10**6, "algbw_gb_s": 12.5, "busbw_gb_s": 6.25}
    matmul = {"kind": "matmul", "flops": 10**9, "p50_ns": 10**6, "tflop_s": 700.0, "peak_tflop_s": 989.0}
    matmul["pct_of_peak"] = 70.8
    return {
        "config": {
            "sequence": 8,
            "hidden": 8,
            "iterations": 2,
            "precision": "bfloat16",
            "ranks": ranks,
            "launcher": "torchrun",
            "backend": "nccl",
            "device": "cuda",
            "device_name": "NVIDIA H200",
            "torch": "2.11.0",
            "cores": 64,
        },
        "parts": [{"name": name, **(matmul if name[0] == "m" else collective)} for name in names],
        "ranks": [
            {"rank": rank, "parts": dict.fromkeys(names, times), "iteration": times, "wall_ns": 10**7 + rank}
            for rank in range(ranks)
        ],
        "time_to_solution_ns": 10**7,
        "overlap": {"chunks": 4, "time_to_solution_ns": 8 * 10**6, "speedup": 1.25},
        "notes": [],
        "check": {"relative_error": 0.003, "tolerance": 0.03},
    }


def test_the_report_fits_into_80_columns_and_says_what_matters() -> None:
    text = report_text(sample_report())
    assert max(map(len, text.splitlines())) <= 80
    assert "matmul1          1.000    700.0   70.8 %" in text
    assert "Overlapped in 4 chunks: 8.000 ms, 1.25 times as fast" in text
    assert "Time to solution: 10.000 ms, 5.000 ms an iteration" in text


def test_of_many_ranks_the_extremes_are_shown() -> None:
    text = report_text(sample_report(64))
    assert "the 4 fastest and 4 slowest of 64" in text
    shown = {int(line.split()[1]) for line in text.splitlines() if line.startswith("iteration")}
    assert shown == {0, 1, 2, 3, 60, 61, 62, 63}


def test_an_overlap_that_does_not_pay_says_why() -> None:
    report = sample_report()
    report["overlap"]["speedup"] = 0.8
    assert "Communication is 50 % of an iteration" in report_text(report)
    report["config"].update(device="cpu", cores=2)
    assert "leave none for gloo's threads" in report_text(report).replace("\n  ", " ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chunks", "4"], "--chunks is for the overlapped form"),
        (["-o", "x"], "-o and -f are for the folder of a profile"),
        (["-wit", "-1"], "-wit -1 is not a number of iterations"),
        (["-s", "7", "-d", "8", "--nproc", "2"], "S = 7 cannot be split"),
        (["-s", "0"], "'0' is not a positive number"),
        (["-p", "float64"], "invalid choice"),
    ],
)
def test_usage_errors(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "seqpar", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-s", "8", "-d", "9", "--nproc", "1,2"], "H = 9 cannot be split over 2 ranks"),
        (["-s", "8", "-d", "8", "--chart", "x.png"], "neither .json nor .csv"),
        (["-s", "8,x", "-d", "8"], "'x' is not a positive number"),
        (["-s", "8", "-d", "8", "-p", "half"], "'half' is not one of"),
        (["-s", "8", "-d", "8", "--profile"], "--profile needs -o DIR"),
        (
            ["-s", "8", "-d", "8", "--job", "pbs", "--gres", "gpu:4"],
            "--gres, --gpus-per-node and --constraint",
        ),
        (["-s", "8", "-d", "8", "-o", "x", "--profile=--ranks no:thing"], "no:thing"),
        (["-s", "8", "-d", "8", "-o", "x", "--profile=-o y"], "the sweep itself starts and shows the points"),
    ],
)
def test_sweep_usage_errors(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sweep", *words]) == 2
    assert message in capsys.readouterr().err


def test_sweep_table_series_csv_and_chart() -> None:
    values = (1_500_000, 700.0, 70.8, 12.0, 9.0, 1.1, "runs/a b")
    rows = [
        dict(zip(sweep.COLUMNS, (sequence, 9216, "bfloat16", 2, *values), strict=True))
        for sequence in (2304, 4608)
    ]
    text = sweep.table_text(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert "1.10x" in text
    assert "  rankscope stats 'runs/a b'    S 2304, bfloat16, H 9216, 2 ranks" in text
    assert "bfloat16, H 9216, 2 ranks   700.0   700.0" in text
    assert sweep.csv_text(rows).splitlines()[0] == ",".join(sweep.COLUMNS)
    chart = json.loads(json.dumps(sweep.chart(rows)))
    assert [point["sequence"] for point in chart["data"]["values"]] == [2304, 4608]
