"""`rankscope probe`: simulated fleets with a planted fault, the words of nvidia-smi and the kernel, and real ranks."""

from __future__ import annotations

import csv
import json
import os
import random
import stat
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import DATA, ROOT, examples
from integration.jobs import PYTHON, needs_torch, run
from rankscope import host
from rankscope.bench.probe import gpu_state
from rankscope.bench.probe.gpu_state import GpuQuery, Sampling, summarised, xids
from rankscope.bench.probe.judge import OK, Verdict, judge
from rankscope.bench.probe.measure import rounds
from rankscope.bench.probe.report_text import report_text
from rankscope.bench.probe.results import DeviceResult, PairResult, Results
from rankscope.cli import main
from rankscope.model import HW_SLOWDOWN, HW_THERMAL, SW_POWER_CAP

HEALTHY = {"matmul": 700.0, "memory": 4100.0, "to_gpu": 55.0, "from_gpu": 54.0}
"""Of an H200."""
GPUS_A_NODE = 8


def noisy(chance: random.Random, rate: float, blocks: int = 12) -> list[float]:
    """Devices differ by 1.5 %, blocks by 0.5 %."""
    mean = rate * chance.gauss(1, 0.015)
    return [mean * chance.gauss(1, 0.005) for _ in range(blocks)]


def fleet(size: int, seed: int = 0, model: str = "NVIDIA H200") -> Results:
    """Healthy GPUs: at their power limit, as those of the recorded logs."""
    chance = random.Random(seed)
    devices = []
    for rank in range(size):
        device = DeviceResult(rank, f"node{rank // GPUS_A_NODE}", rank % GPUS_A_NODE, model, digest=17)
        device.rates = {test: noisy(chance, rate) for test, rate in HEALTHY.items()}
        if rank % GPUS_A_NODE == 0:
            device.rates |= {
                test: [chance.uniform(0.8, 1.2) for _ in range(3)] for test in ("disk_write", "disk_read")
            }
        clock = chance.gauss(1485, 20)
        device.state = {
            "bus": f"00000000:{rank + 16:02x}:00.0",
            "sm_clock_mhz": clock,
            "sm_clock_range_mhz": [clock - 60, clock + 60],
            "highest_sm_clock_mhz": 1980.0,
            "power_w": 690.0,
            "power_limit_w": 700.0,
            "default_power_limit_w": 700.0,
            "temperature_c": chance.uniform(50, 65),
            "reasons": {SW_POWER_CAP: 1.0},
            "pcie_gen": 5.0,
            "highest_pcie_gen": 5.0,
            "pcie_width": 16.0,
            "highest_pcie_width": 16.0,
            "ecc_uncorrected": 0.0,
            "xids": [],
        }
        devices.append(device)
    pairs = [
        PairResult(
            [first, second], noisy(chance, 300.0 if devices[first].host == devices[second].host else 40.0, 7)
        )
        for partners in rounds([device.host for device in devices])
        for first, second in partners.items()
        if first < second
    ]
    return Results(devices, pairs, "nccl", "2.11")


def slow_down(device: DeviceResult, factor: float, *tests: str) -> None:
    for test in tests:
        device.rates[test] = [factor * rate for rate in device.rates[test]]


def clock_at(device: DeviceResult, clock: float, jitter: float, *reasons: str) -> None:
    device.state["sm_clock_mhz"] = clock
    device.state["sm_clock_range_mhz"] = [clock - jitter, clock + jitter]
    device.state["reasons"] = dict.fromkeys(reasons, 1.0)
    slow_down(device, clock / 1485, "matmul")


def power_cap(device: DeviceResult) -> None:
    device.state |= {"power_limit_w": 400.0, "power_w": 398.0}
    clock_at(device, 1218, 30, SW_POWER_CAP)


def narrow_link(device: DeviceResult) -> None:
    device.state["pcie_width"] = 8.0
    slow_down(device, 0.5, "to_gpu", "from_gpu")


FAULTS: dict[str, tuple[Callable[[DeviceResult], None], str, str]] = {
    "power cap": (
        power_cap,
        "matmul",
        "power cap (400 W instead of 700 W; SM clock 1,218 MHz, the others 1,",
    ),
    "thermal": (lambda device: clock_at(device, 900, 100, HW_THERMAL), "matmul", "thermal slowdown ("),
    "hardware slowdown": (
        lambda device: clock_at(device, 745, 0, HW_SLOWDOWN),
        "matmul",
        "hardware slowdown or power",
    ),
    "locked clock": (
        lambda device: clock_at(device, 900, 0),
        "matmul",
        "SM clock locked at 900 MHz (highest: 1,980",
    ),
    "low clock": (
        lambda device: clock_at(device, 1200, 30, SW_POWER_CAP),
        "matmul",
        "at the same power limit",
    ),
    "unknown": (
        lambda device: slow_down(device, 0.8, "matmul"),
        "matmul",
        "no limit of clock or power explains it",
    ),
    "memory": (
        lambda device: slow_down(device, 0.8, "memory"),
        "memory",
        "no limit of clock or power explains it",
    ),
    "PCIe": (narrow_link, "to_gpu", "PCIe link x8 instead of x16"),
    "host": (
        lambda device: slow_down(device, 0.6, "from_gpu"),
        "from_gpu",
        "the PCIe link has its full width",
    ),
}


def slow(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.tests]


@pytest.mark.parametrize("size", [1, 2, 3, 8, 33])
def test_a_healthy_fleet_has_no_slow_device(size: int) -> None:
    for seed in range(10):
        (verdict,) = judge(fleet(size, seed))
        assert (verdict.severity, verdict.ranks) == (OK, tuple(range(size)))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("size", [2, 3, 8, 24])
def test_a_planted_fault_is_named_with_its_cause(fault: str, size: int) -> None:
    plant, test, words = FAULTS[fault]
    for seed in range(5):
        results = fleet(size, seed)
        victim = results.devices[seed * 7 % size]
        plant(victim)
        (verdict,) = slow(judge(results))
        assert (verdict.severity, verdict.ranks, verdict.tests[0]) == ("warning", (victim.rank,), test)
        assert verdict.text.startswith(f"GPU {victim.gpu} of {victim.host} runs ") and words in verdict.text
        assert verdict.cause == (fault if fault not in ("memory", "host") else "unknown")


def test_the_share_is_that_of_the_rates() -> None:
    results = fleet(8)
    for device in results.devices:
        device.rates["matmul"] = [700.0] * 5
    results.devices[3].rates["matmul"] = [574.0] * 5
    text = slow(judge(results))[0].text
    assert text.startswith("GPU 3 of node0 runs matmuls 18 % slower than the other 7: ")
    results.devices[3].rates["matmul"] = [280.0] * 5
    assert "matmuls 2.5x slower than" in slow(judge(results))[0].text


@settings(max_examples=examples(60))
@given(st.integers(4, 24), st.randoms(use_true_random=False))
def test_any_set_that_leaves_two_fast_ones_is_named(size: int, chance: random.Random) -> None:
    """Also more than half. With one cause, a host has one verdict."""
    results = fleet(size, chance.randrange(1000))
    victims = set(chance.sample(range(size), chance.randint(1, max(1, min(size - 2, size * 3 // 4 - 1)))))
    for rank in victims:
        power_cap(results.devices[rank])
    chance.shuffle(results.devices)
    verdicts = slow(judge(results))
    assert {rank for verdict in verdicts for rank in verdict.ranks} == victims
    assert len(verdicts) == len({rank // GPUS_A_NODE for rank in victims})


def test_a_node_is_one_verdict() -> None:
    results = fleet(24)
    for device in results.devices[8:16]:
        power_cap(device)
    (verdict,) = slow(judge(results))
    assert verdict.text.startswith("GPUs 0-7 of node1 run matmuls ") and verdict.ranks == tuple(range(8, 16))


def test_alone_it_is_compared_with_the_data_sheet_and_the_baseline() -> None:
    alone, earlier = fleet(1), fleet(1, seed=1)
    assert judge(alone)[0].severity == OK
    clock_at(alone.devices[0], 900, 0)
    assert (
        "slower than usual for H200 (70 % of the data sheet's 989 TFLOP/s): SM clock locked"
        in judge(alone)[0].text
    )
    assert "slower than in the baseline: SM clock locked" in _with_model(alone, earlier, "NVIDIA Z1")
    assert judge(alone)[0].hint == "Unlock it: nvidia-smi -i 0 -rgc"
    for model, sharing in (("NVIDIA H200", 2), ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 1), ("NVIDIA H200", 1)):
        alone.devices[0].model, alone.devices[0].sharing = model, sharing
        assert bool(slow(judge(alone))) == (model == "NVIDIA H200" and sharing == 1)


def _with_model(alone: Results, earlier: Results, model: str) -> str:
    """A model without a data sheet: without a baseline only its clock can be remarked."""
    for results in (alone, earlier):
        results.devices[0].model = model
    without = judge(alone)
    assert [verdict.cause for verdict in without] == ["locked clock", ""] and not slow(without)
    text = judge(alone, earlier)[0].text
    alone.devices[0].model = earlier.devices[0].model = "NVIDIA H200"
    return text


def test_a_rate_that_varies_is_not_enough_evidence() -> None:
    results = fleet(4)
    results.devices[1].rates["matmul"] = [700.0, 600.0, 700.0, 600.0, 600.0]
    (verdict,) = slow(judge(results))
    assert (verdict.severity, verdict.cause, verdict.ranks) == ("info", "unsteady", (1,))


@pytest.mark.parametrize("size", [8, 24])
def test_a_network_card_and_a_link_are_told_apart(size: int) -> None:
    results = fleet(size)
    for pair in results.pairs:
        if 5 in pair.ranks:
            pair.rates = [0.4 * rate for rate in pair.rates]
    (verdict,) = slow(judge(replace(results)))
    tests = ("in_node", "between_nodes")[: 1 + (size > 8)]
    assert (verdict.ranks, verdict.tests, verdict.cause) == ((5,), tests, "link")
    results = fleet(size)
    pair = results.pairs[9]
    pair.rates = [0.4 * rate for rate in pair.rates]
    (verdict,) = slow(judge(replace(results)))
    assert verdict.ranks == tuple(pair.ranks) and verdict.text.startswith("all_reduce between GPU ")


def test_many_slow_pairs_are_how_the_machine_is_wired() -> None:
    """Two sockets: four GPUs each have fast links among themselves only."""
    results = fleet(8)
    for pair in results.pairs:
        pair.rates = [25.0 if pair.ranks[0] // 4 == pair.ranks[1] // 4 else 10.0] * 7
    assert judge(replace(results))[0].severity == OK


def test_the_disk_of_a_node() -> None:
    results = fleet(32)
    slow_down(results.devices[16], 0.2, "disk_read")
    (verdict,) = slow(judge(results))
    assert verdict.text.startswith("node2 runs disk reads ") and verdict.cause == "disk"


def test_errors_wrong_results_and_use_are_said_of_fast_devices_too() -> None:
    results = fleet(8)
    results.devices[2].state["ecc_uncorrected"] = 3.0
    results.devices[3].state["xids"] = [13, 31]  # errors of programs
    results.devices[4].state["xids"] = [13, 79]
    results.devices[5].digest = 18
    results.devices[6].repeatable = False
    results.devices[7].busy, results.devices[7].rates = True, {}
    results.devices[7].state["busy_pct"] = 97.0
    verdicts = judge(results)
    by_rank = {
        verdict.ranks: (verdict.severity, verdict.text) for verdict in verdicts if verdict.severity != OK
    }
    assert by_rank == {
        (5,): ("critical", "GPU 5 of node0: another product of the same numbers than the other 7"),
        (6,): ("critical", "GPU 6 of node0: another product of the same numbers each time"),
        (2,): ("warning", "GPU 2 of node0: 3 uncorrected ECC errors since the driver was loaded"),
        (4,): ("warning", "GPU 4 of node0: Xid 79 in the kernel's log"),
        (7,): ("info", "GPU 7 of node0: in use (97 % busy), not tested"),
    }


def cpus(size: int) -> Results:
    chance = random.Random(size)
    devices = [
        DeviceResult(
            rank,
            "node0",
            None,
            "CPU (1 thread a rank)",
            {"matmul": noisy(chance, 0.05), "memory": noisy(chance, 9.0)},
            {"cpu_share": 0.99, "xids": []},
        )
        for rank in range(size)
    ]
    return Results(devices, [], "gloo", "2.13")


def test_on_cpus_slow_cores_and_taken_cores_are_two_things() -> None:
    results = cpus(4)
    assert [verdict.severity for verdict in judge(results)] == [OK]
    results.devices[1].state["cpu_share"] = 0.5
    slow_down(results.devices[2], 0.7, "matmul")
    verdicts = {verdict.cause: verdict for verdict in judge(results)}
    assert (verdicts["unknown"].ranks, verdicts["unknown"].severity) == ((2,), "warning")
    assert (verdicts["contention"].ranks, verdicts["contention"].severity) == ((1,), "warning")
    assert "rank 2 of node0 runs matmuls 3" in verdicts["unknown"].text
    for device in results.devices:
        device.state["cpu_share"] = 0.3
    (taken, others) = judge(results)
    assert (taken.severity, taken.ranks, taken.tests) == ("info", (2,), ("matmul",))
    assert (others.severity, others.ranks, others.cause) == ("info", (0, 1, 3), "contention")
    alone = Results(results.devices[:1], [], "gloo", "2.13")
    assert judge(alone)[-1].text.startswith("nothing to compare with")


def test_the_table_marks_what_is_slow_and_leaves_out_what_nobody_has() -> None:
    results = fleet(8)
    power_cap(results.devices[3])
    text = report_text(results, judge(results))
    (row,) = (line for line in text.splitlines() if line.startswith("3 "))
    assert "*" in row and "400" in row and "SW power cap" in row
    assert text.count("; * slow") == 1 and "CPU share" not in text
    many = fleet(64)
    power_cap(many.devices[40])
    lines = report_text(many, judge(many)).splitlines()
    assert [line.split()[0] for line in lines[4:6]] == ["40", "median"] and "median of 63 others" in lines[5]


def test_the_page_shows_what_is_printed() -> None:
    results = fleet(8)
    for device in results.devices:
        device.host = "node7"
    power_cap(results.devices[3])
    assert report_text(results, judge(results)) in (ROOT / "docs" / "probe.md").read_text(encoding="utf-8")


@settings(max_examples=examples(60))
@given(st.lists(st.integers(1, 20), min_size=1, max_size=20))
def test_each_pair_of_a_node_and_of_equal_places_meets_once(sizes: list[int]) -> None:
    """Sizes of nodes. Of more than 16 ranks or nodes, some pairs do not meet, but none meets twice."""
    hosts = [f"node{node}" for node, size in enumerate(sizes) for _ in range(size)]
    place = [at for size in sizes for at in range(size)]
    met: list[tuple[int, int]] = []
    for partners in rounds(hosts):
        assert all(partners[partner] == rank != partner for rank, partner in partners.items())
        met += [(rank, partner) for rank, partner in partners.items() if rank < partner]
    ranks = range(len(hosts))
    pairs = {(a, b) for a in ranks for b in range(a) if hosts[a] == hosts[b] or place[a] == place[b]}
    pairs = {(b, a) for a, b in pairs}
    assert len(met) == len(set(met)) and set(met) <= pairs
    if max(*sizes, len(sizes)) <= 16:
        assert set(met) == pairs
    for rank in ranks:
        with_peers = any(rank in pair for pair in met if hosts[pair[0]] == hosts[pair[1]])
        assert with_peers == (hosts.count(hosts[rank]) > 1)


# nvidia-smi and the kernel's log


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def nvidia_smi(folder: Path, values: dict[str, str]) -> None:
    """A program that knows these fields of the GPU with the UUID 7."""
    answers = "\n".join(f'{field}) value="{value}" ;;' for field, value in values.items())
    body = f"""
        [ "$1 $3" = "--id=GPU-7 --format=csv,noheader,nounits" ] || exit 9
        IFS=,
        for field in ${{2#--query-gpu=}}; do
            case "$field" in
                {answers}
                *) echo "Field \\"$field\\" is not a valid field to query."; exit 2 ;;
            esac
            line="$line, $value"
        done
        echo "${{line#, }}"
    """
    program(folder, "nvidia-smi", body)


VALUES = {
    "index": "5",
    "pci.bus_id": "00000000:3B:00.0",
    "clocks.sm": "900",
    "clocks.max.sm": "1980",
    "power.draw": "388.77",
    "enforced.power.limit": "700.00",
    "utilization.gpu": "97",
    "temperature.gpu": "49",
    "clocks_throttle_reasons.active": "0x0000000000000044",
    "ecc.errors.uncorrected.volatile.total": "[N/A]",
}
"""Of an old driver."""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_nvidia_smi_is_asked_for_what_it_knows(path: Path) -> None:
    nvidia_smi(path, VALUES)
    query = GpuQuery("GPU-7")
    with Sampling(query) as sampling:
        sampling.stop()
    assert len(sampling.samples) == 3 and not sampling.active
    assert summarised(sampling.samples) == {
        "gpu": 5.0,
        "bus": "00000000:3b:00.0",
        "sm_clock_mhz": 900.0,
        "sm_clock_range_mhz": [900.0, 900.0],
        "highest_sm_clock_mhz": 1980.0,
        "power_w": 388.77,
        "power_limit_w": 700.0,
        "temperature_c": 49.0,
        "busy_pct": 97.0,
        "reasons": {SW_POWER_CAP: 1.0, HW_THERMAL: 1.0},
    }


def test_without_nvidia_smi_or_when_it_fails_there_is_no_state(path: Path) -> None:
    assert GpuQuery("GPU-7").sample() == {} == GpuQuery(None).sample()
    program(path, "nvidia-smi", "echo No devices were found; exit 6")
    with Sampling(GpuQuery("GPU-7")) as sampling:
        pass
    assert sampling.samples == [] and summarised([]) == {}


def test_xids_of_this_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_KERNEL_LOG", Path("/nonexistent"))
    assert xids("00000000:3B:00.0") == []
    log = [
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (0000:3b:00): 13, Channel 1",
    ]
    log += ["NVRM: Xid (PCI:0001:3b:00): 48, other domain", "NVRM: Xid (PCI:0000:86:00): 63", "usb 1-1: Xid"]
    reader, writer = os.pipe2(os.O_DIRECT)  # as /dev/kmsg, a read returns one record
    for line in log:
        os.write(writer, f"4,1,10,-;{line}\n".encode())
    monkeypatch.setattr(host, "_KERNEL_LOG", Path(f"/proc/self/fd/{reader}"))
    assert xids("00000000:3B:00.0") == [13, 79] and xids(None) == []
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(("run_name", "mhz"), [("clocks-h200-900mhz", 900), ("clocks-h200-free", 1485)])
def test_recorded_logs_of_an_h200(run_name: str, mhz: int) -> None:
    """The same matmuls with the clock locked at 900 MHz and free, in one log of nvidia-smi."""
    with (DATA / run_name / "gpu.csv").open(encoding="utf-8") as file:
        rows = [[value.split()[0] for value in row] for row in list(csv.reader(file))[1:]]
    locked = mhz == 900
    samples = [
        {"sm_clock_mhz": float(row[2]), "reasons": int(row[7], 16), "highest_sm_clock_mhz": 1980.0}
        for row in rows
        if float(row[6]) > 50 and (row[2] == "900") == locked
    ]
    state = summarised(samples)
    assert state["sm_clock_mhz"] == pytest.approx(mhz, abs=20)
    device = DeviceResult(0, "h200", 0, "NVIDIA H200", {"matmul": [440.0 if locked else 700.0]}, state)
    causes = [verdict.cause for verdict in slow(judge(Results([device], [], "nccl", "2.11")))]
    assert causes == (["locked clock"] if locked else [])


# The command


def test_results_of_several_nodes_are_judged_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for node in range(3):
        results = fleet(4, seed=node)
        for device in results.devices:
            device.host = f"node{node}"
        if node == 1:
            power_cap(results.devices[2])
        files.append(tmp_path / f"{node}.json")
        files[-1].write_text(json.dumps(results.to_json()), encoding="utf-8")
    words = ["probe", *map(str, files)]
    assert main([*words, "--json", "--fail-on", "warning"]) == 3
    verdict = json.loads(capsys.readouterr().out)["verdicts"][0]
    assert verdict["text"].startswith("GPU 2 of node1 runs matmuls 1") and verdict["ranks"] == [6]
    assert main([*words, "--fail-on", "critical"]) == 0
    assert "the other 11: power cap (400 W" in " ".join(capsys.readouterr().out.split())
    assert main(["probe", str(files[0]), "--baseline", str(files[2]), "--fail-on", "info"]) == 0
    results.torch, results.devices[0].digest = "2.12", 18
    files[2].write_text(json.dumps(results.to_json()), encoding="utf-8")
    assert main([*words, "--fail-on", "critical"]) == 0  # another torch may sum in another order


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--seconds", "0"], 2, "--seconds must be more than 0"),
        (["--disk", "/nowhere"], 2, "--disk /nowhere is not a folder"),
        (["FILE"], 1, "is not a result of rankscope probe"),
        (["--baseline", "FILE"], 1, "is not a result of rankscope probe"),
    ],
)
def test_wrong_arguments(
    words: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text('{"probe": 99}', encoding="utf-8")
    assert main(["probe", *(str(tmp_path / "x.json") if word == "FILE" else word for word in words)]) == code
    assert message in capsys.readouterr().err


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A world of one rank, in this process, with small tests."""
    pytest.importorskip("torch", reason="the probe runs torch's matrix products")
    from rankscope.bench.probe import measure
    from rankscope.bench.ranks.world import join, leave

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(measure, "_SIZES", {True: measure.Sizes(64, 4096, 4096)})
    monkeypatch.setattr(measure, "_CHUNK_BYTES", 4096)
    yield join("gloo", "cpu")
    leave()


@pytest.mark.slow
def test_a_device_in_use_is_left_alone(alone: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.bench.probe import measure

    results = measure.measure(alone, alone, 0.01, path)
    assert set(results.devices[0].rates) == {"matmul", "memory", "disk_write", "disk_read"}
    assert all(rate > 0 for rates in results.devices[0].rates.values() for rate in rates)
    assert list(path.iterdir()) == []
    nvidia_smi(path, VALUES)
    monkeypatch.setattr(measure, "_selector", lambda device: "GPU-7")
    monkeypatch.setattr(gpu_state, "_LEAST_SAMPLES", 1)
    results = measure.measure(alone, alone, 0.01, None)
    assert results.devices[0].rates == {} and judge(results)[-1].cause in ("in use", "")
    nvidia_smi(path, {**VALUES, "utilization.gpu": "0"})
    (device,) = measure.measure(alone, alone, 0.01, None).devices
    assert set(device.rates) == {"matmul", "memory"} and device.state["sm_clock_mhz"] == 900


@needs_torch
@pytest.mark.slow
@pytest.mark.thorough
def test_real_ranks(tmp_path: Path) -> None:
    words = [PYTHON, "-m", "rankscope", "probe", "--nproc", "2", "-t", "0.1", "--no-disk", "--json"]
    report = json.loads(run(words, tmp_path).stdout)
    assert [device["rank"] for device in report["devices"]] == [0, 1]
    assert [pair["ranks"] for pair in report["pairs"]] == [[0, 1]]
    for device in report["devices"]:
        assert set(device["rates"]) == {"matmul", "memory", "in_node"} and device["repeatable"]
        assert statistics.median(device["rates"]["in_node"]) > 0
    assert report["verdicts"] and report["backend"] == "gloo"
