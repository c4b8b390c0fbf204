"""Counters of nvidia-smi and DCGM: values as written, whatever the layout; damage is counted."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpu_logs import (
    SECOND,
    SW_THERMAL,
    Sample,
    dcgmi,
    prometheus,
    query_csv,
    write,
)
from rankscope.errors import NotATraceError, RankscopeError, ReadError
from rankscope.model import SM_CLOCK
from rankscope.readers import find_reader, looks_like_a_trace
from rankscope.readers.base import LOCAL, UNIX, NodePart, ReadReport
from rankscope.readers.gpu_counters.layouts import read_time
from rankscope.readers.gpu_counters.reader import GPU_COUNTERS

START = 1_794_701_458 * SECOND
Read = list[tuple[str, int, dict[str, float]]]


def varied(count: int = 40, gpus: int = 4, every_ns: int = SECOND) -> list[Sample]:
    """Samples that all differ; their values can be looked up."""
    chance = random.Random(7)
    return [
        Sample(
            START + number // gpus * every_ns,
            number % gpus,
            chance.randrange(200, 2000),
            chance.randrange(400, 2700),
            float(chance.randrange(70, 700)),
            chance.randrange(20, 95),
            0x20 * (number % 3 == 0),
        )
        for number in range(count)
    ]


def everything(path: Path, gpus: Sequence[int] = range(8), shift_s: int = 0) -> tuple[Read, ReadReport]:
    """What is read of these GPUs, at all times."""
    part = NodePart(tuple(map(str, gpus)), shift_s * SECOND, 0, 1 << 62)
    reading = GPU_COUNTERS.open(path, str(part))
    found: Read = []
    for batch in reading.batches():
        columns = batch.columns()
        for place in range(len(columns)):
            if columns.texts.at(int(columns.phase[place])) == "C":
                args = json.loads(columns.args_of(place) or "{}")
                found.append(
                    (columns.texts.at(int(columns.name[place])) or "", int(columns.time[place]), args)
                )
        batch.close()
    return found, reading.report


def _spaced(sample: Sample) -> str:
    return f"{sample.time_ns // SECOND}.{sample.time_ns % SECOND:09d} "


LAYOUTS: dict[str, tuple[Callable[[list[Sample]], str], str]] = {
    "query": (query_csv, LOCAL),
    "query without units": (lambda samples: query_csv(samples, units=False, spelling="throttle"), LOCAL),
    "dcgmi": (lambda samples: dcgmi(samples, _spaced), UNIX),
    "prometheus": (prometheus, UNIX),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_value_is_read_as_written(layout: str, tmp_path: Path) -> None:
    samples = varied()
    text, clock = LAYOUTS[layout]
    path = write(tmp_path / "anything.log", text(samples))
    assert looks_like_a_trace(path) and find_reader(path) is GPU_COUNTERS
    log = GPU_COUNTERS.log(path)
    assert [device.number for device in log.devices] == [0, 1, 2, 3]
    assert (log.clock, log.first_ns, log.last_ns) == (clock, samples[0].time_ns, samples[-1].time_ns)
    found, report = everything(path)
    assert (report.events_lost, report.events_repaired, report.damage) == (0, 0, "")
    read: dict[tuple[str, int], dict[str, float]] = {}
    for name, time, values in found:
        read.setdefault((name, time), {}).update(values)
    assert len(read) == len(samples)
    for sample in samples:
        values = read[f"GPU {sample.gpu}", sample.time_ns]
        assert {name: values[name] for name in sample.values} == sample.values
        assert values[SW_THERMAL] == float(sample.reasons > 0)


def test_only_the_wanted_gpus_and_times_are_read(tmp_path: Path) -> None:
    samples = varied(400)
    path = write(tmp_path / "smi.csv", query_csv(samples))
    begin, end = START + 20 * SECOND, START + 60 * SECOND
    reading = GPU_COUNTERS.open(path, str(NodePart(("1", "3"), 0, begin, end)))
    count = sum(len(batch.columns()) for batch in reading.batches())
    expected = [one for one in samples if one.gpu in (1, 3) and begin <= one.time_ns <= end]
    assert count == len(expected) + 2  # the names of two GPUs
    gpus = [{"gpu": "1", "name": "NVIDIA H200"}, {"gpu": "3", "name": "NVIDIA H200"}]
    header = reading.header["gpuCounters"]
    highest = header.pop("highest_mhz")
    assert list(highest) == ["1", "3"]
    for clock in highest.values():  # outside these times not every line is looked at
        assert max(one.sm_mhz for one in expected) <= clock <= max(one.sm_mhz for one in samples)
    assert header == {"tool": "nvidia-smi", "gpus": gpus, "times": LOCAL, "shift_ns": 0}


@pytest.mark.parametrize(
    ("text", "clock", "ns"),
    [
        ("2026/11/16 10:20:30.123, 0", LOCAL, 1_794_824_430_123_000_000),
        ("2026-11-16 10:20:30 GPU 0", LOCAL, 1_794_824_430_000_000_000),
        ("2026-11-16T10:20:30.5+02:00 GPU 0", UNIX, 1_794_817_230_500_000_000),
        ("2026-11-16T10:20:30Z GPU 0", UNIX, 1_794_824_430_000_000_000),
        ("1794824430.000000001 GPU 0", UNIX, 1_794_824_430_000_000_001),
        ("1794824430123", UNIX, 1_794_824_430_123_000_000),
    ],
)
def test_times(text: str, clock: str, ns: int) -> None:
    assert read_time(text)[:2] == (clock, ns)


@pytest.mark.parametrize(
    "text", ["", "GPU 0", "2026/13/16 10:20:30", "10:20:30", "12", "99999999999999999999", "-5"]
)
def test_no_times(text: str) -> None:
    with pytest.raises(ValueError):
        read_time(text)


@pytest.mark.parametrize(
    ("name", "text", "message", "hint"),
    [
        ("a.log", dcgmi(varied()), "has no times", "date +%s.%N"),
        ("a.prom", prometheus(varied(), times=False), "has no times", "milliseconds"),
        ("a.csv", "utilization.gpu [%], clocks.sm [MHz]\n5 %, 100 MHz\n", "has no times", "timestamp,index"),
        (
            "a.csv",
            "timestamp, clocks.sm [MHz]\n" + "2026/11/16 10:20:30.123, 9\n" * 4,
            "apart",
            "timestamp,index",
        ),
        ("a.csv", query_csv(varied()).partition("\n")[2], "no line", "first line"),
        ("a.csv", query_csv([]), "no line", "first line"),
    ],
)
def test_what_cannot_be_used_is_said(name: str, text: str, message: str, hint: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, text)
    assert find_reader(path) is GPU_COUNTERS
    with pytest.raises(ReadError) as raised:
        GPU_COUNTERS.log(path)
    assert message in raised.value.message and raised.value.why and hint in raised.value.hint


def test_a_log_without_a_header_is_read_with_the_query_as_its_first_line(tmp_path: Path) -> None:
    text = "timestamp,index,clocks.sm\n2026/11/16 10:20:30.123, 0, 1410\n2026/11/16 10:20:31.123, 0, 1400\n"
    found, report = everything(write(tmp_path / "a.csv", text))
    assert [values for _, _, values in found] == [
        {SM_CLOCK: 1410},
        {SM_CLOCK: 1400},
    ] and not report.events_lost


def test_a_log_of_one_gpu_needs_no_number(tmp_path: Path) -> None:
    times = [f"10:20:{second:02d}.{second:03d}" for second in (*range(30), *range(33, 60))]
    text = "timestamp, power.draw [W]\n" + "".join(f"2026/11/16 {time}, 22.89 W\n" for time in times)
    path = write(tmp_path / "a.csv", text)
    (device,) = GPU_COUNTERS.log(path).devices
    assert (device.number, device.key) == (None, "")
    reading = GPU_COUNTERS.open(path, str(NodePart(("",), 0, 0, 1 << 62)))
    assert sum(len(batch.columns()) for batch in reading.batches()) == len(times) + 1


def test_a_column_gpu_of_a_script_goes_before_index(tmp_path: Path) -> None:
    lines = [f"2026-09-08T17:26:50+08:00,{gpu}, 0, 74.01" for gpu in range(3)]
    path = write(tmp_path / "a.csv", "\n".join(["timestamp,gpu,index,power.draw", *lines, ""]))
    log = GPU_COUNTERS.log(path)
    assert (log.clock, [device.number for device in log.devices]) == (UNIX, [0, 1, 2])


@pytest.mark.parametrize(
    "text",
    [
        "timestamp,loss\n1,2\n",
        "step, power, memory\n1, 2, 3\n",
        "# gpu tests pass\nok\n",
        "# gpu   pwr  gtemp\n# Idx     W      C\n    0    70     30\n",
        "epoch 1 loss 3\n",
        "a,b\n",
    ],
)
def test_other_texts_are_not_taken_for_logs(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "job.log", text)
    assert not looks_like_a_trace(path)
    with pytest.raises(NotATraceError):
        find_reader(path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_truncation_at_any_byte_loses_one_line_at_most(layout: str, tmp_path: Path) -> None:
    samples = varied(8)
    whole = LAYOUTS[layout][0](samples).encode()
    all_values, _ = everything(write(tmp_path / "whole.log", whole.decode()))
    path = tmp_path / "cut.log"
    for size in range(whole.index(b"\n", whole.index(b"\n") + 1) + 1, len(whole), len(whole) // 17):
        path.write_bytes(whole[:size])
        found, report = everything(path)
        assert found == all_values[: len(found)], "no number is cut"
        assert report.events_lost == (whole[size - 1 : size] != b"\n")
        assert bool(report.damage) == bool(report.events_lost)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_that_change_raise_no_other_error(layout: str, tmp_path: Path) -> None:
    whole = LAYOUTS[layout][0](varied(8)).encode()
    chance = random.Random(layout)
    path = tmp_path / "x.log"
    for _ in range(25):
        content = bytearray(whole)
        for _ in range(chance.randrange(1, 30)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        try:
            if find_reader(path) is GPU_COUNTERS:
                GPU_COUNTERS.log(path)
                everything(path)
        except RankscopeError as error:
            assert error.message and error.why and error.hint


BAD_LINES = {
    "2026/11/16 10:20:30.123, 0, 1e400 MHz, 2 W": (0, 1),
    "2026/11/16 10:20:30.123, 0, nan, -inf W": (0, 2),
    "2026/11/16 10:20:30.123, 0, 9223372036854775794, 2": (0, 1),
    "2026/11/16 10:20:30.123, 0, [1, 2], 3": (1, 0),
    "2026/11/16 10:20:30.123, 0, {}, 3": (0, 1),
    "2026/11/16 10:20:30.123, -1, 5, 3": (1, 0),
    "2026/11/16 10:20:30.123, 99999999999999999999999, 5, 3": (1, 0),
    "0000/00/00 10:20:30.123, 0, 5, 3": (1, 0),
    "-2026/11/16 10:20:30.123, 0, 5, 3": (1, 0),
    "2026/11/16 10:20:30.123, 0, N/A, [Not Supported]": (0, 0),
    "2026/11/16 10:20:30.123, 0, [Unknown Error], -": (0, 0),
    "x" * 100_000: (1, 0),
    "\x00" * 50: (1, 0),
    "": (0, 0),
}


@pytest.mark.parametrize("number", range(len(BAD_LINES)))
def test_a_bad_line_is_counted_and_the_others_are_read(number: int, tmp_path: Path) -> None:
    line, counts = list(BAD_LINES.items())[number]
    good = "2026/11/16 10:20:30.123, 0, 1410 MHz, 70.5 W\n"
    text = f"timestamp, index, clocks.sm [MHz], power.draw [W]\n{good}{line}\n{good}"
    found, report = everything(write(tmp_path / "a.csv", text))
    assert [values[SM_CLOCK] for _, _, values in found if SM_CLOCK in values] == [1410, 1410]
    assert (report.events_lost, report.events_repaired) == counts


def test_a_line_that_never_ends_takes_no_memory(tmp_path: Path) -> None:
    good = "2026/11/16 10:20:30.123, 0, 1410 MHz, 70.5 W\n"
    head = "timestamp, index, clocks.sm [MHz], power.draw [W]\n"
    path = write(tmp_path / "a.csv", f"{head}{good}{'y' * 10_000_000}\n{good}{'z' * 3_000_000}")
    found, report = everything(path)
    assert len(found) == 2 and report.events_lost == 2 and "too long" in report.examples[1]


def test_compressed_and_damaged_files(tmp_path: Path) -> None:
    samples = varied(1000)
    whole = gzip.compress(query_csv(samples).encode())
    path = tmp_path / "smi.csv.gz"
    path.write_bytes(whole)
    assert looks_like_a_trace(path)
    log = GPU_COUNTERS.log(path)
    assert (len(log.devices), log.last_ns) == (4, samples[-1].time_ns)
    assert len(everything(path)[0]) == len(samples)
    path.write_bytes(whole[: len(whole) // 2])
    found, report = everything(path)
    assert 0 < len(found) < len(samples) and "gzip" in report.damage
