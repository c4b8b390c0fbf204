"""What the readers in C depend on: memory in proportion to the file, any locale, little-endian; and being there."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import perfetto_files as pf
from conftest import ROOT
from rankscope import native
from rankscope.errors import ReadError
from rankscope.readers import find_reader
from rankscope.readers.byte_stream import PlainStream
from rankscope.readers.perfetto.reader import PERFETTO
from rankscope.readers.xla.xplane import XPLANE
from rankscope.views.export.protobuf import blob, double, number, text
from xspace_files import PlaneFile, Ref, write_space

COUNT = 20_000


def of_stages() -> bytes:
    specs = blob(24, number(1, 10) + text(2, "stream 7")) + blob(24, number(1, 11) + text(2, "Kernel"))
    launch = blob(21, blob(1, number(1, 8)) + blob(2, number(1, 128)))
    extra = blob(6, text(1, "correlation") + text(2, "11"))
    stage = blob(53, number(2, 5) + number(13, 10) + number(14, 11) + launch + extra)
    return pf.packet(blob(12, specs), flags=pf.CLEARED) + pf.packet(stage, time=1000) * COUNT


def of_values() -> bytes:
    """Counters in the four ways that there are."""
    more = number(31, 6) + number(12, 5) + number(45, 8) + double(46, 0.5)
    whole = pf.packet(pf.event(pf.COUNTER, 4, more=number(30, 5) + more), time=10)
    return (whole + pf.packet(pf.event(pf.COUNTER, 4, more=double(44, 0.5)), time=20)) * COUNT


def of_arguments() -> bytes:
    args = {
        "text": "a",
        "number": -5,
        "real": 0.1,
        "flag": True,
        "list": [1, ["x"]],
        "object": {"a": {"b": 1}},
    }
    nested = blob(4, text(10, "n") + blob(8, number(1, 1) + text(2, "k") + blob(3, number(5, 1))))
    plain = blob(4, text(10, "j") + text(9, '{"a": [1, 2]}'))
    return pf.packet(pf.event(pf.INSTANT, 2, "i", "c", args, more=nested + plain), time=10) * COUNT


def legacy(phase: str, more: bytes = b"") -> bytes:
    return pf.packet(
        pf.event(0, 2, "n", "c", more=blob(6, number(2, ord(phase)) + number(6, 7) + more)), time=10
    )


def records() -> dict[str, bytes]:
    """Many records of every kind."""
    return {
        "slices": pf.slices(2, (10, 5, "op", "cpu_op")) * COUNT,
        "slices that are open": pf.packet(pf.event(pf.BEGIN, 2, "op", "cpu_op"), time=10) * COUNT,
        "stages": of_stages(),
        "counters": of_values(),
        "arguments": of_arguments(),
        "flows": pf.packet(pf.event(pf.INSTANT, 2, "i", more=pf.flow(7, 8) + pf.flow(ends=[9])), time=10) * COUNT,
        "legacy events": b"".join(legacy(phase, number(3, 5)) for phase in "XBEbenstfi") * (COUNT // 10),
        "names": b"".join(
            pf.packet(pf.interned(names={iid: "a" * 50}, categories={iid: "c"}, strings={iid: "s"}))
            + pf.packet(pf.event(pf.INSTANT, 2, more=number(10, iid) + number(3, iid)), time=10)
            for iid in range(1, COUNT)
        ),
        "tracks": b"".join(
            pf.thread(uuid, 1, uuid, "thread") + pf.packet(pf.event(pf.INSTANT, uuid, "i"), time=10)
            for uuid in range(2, COUNT)
        ),
        "writers": b"".join(
            pf.packet(pf.event(pf.INSTANT, 2, "i"), time=10, sequence=sequence, flags=pf.CLEARED)
            for sequence in range(1, COUNT)
        ),
        "clocks": b"".join(
            pf.packet(pf.clocks((6, 1000), (64 + at % 64, 500)), sequence=1 + at // 64) for at in range(COUNT)
        )
        + pf.packet(pf.event(pf.INSTANT, 2, "i"), time=10),
    }  # fmt: skip


LIMITED = """
import resource, sys
from pathlib import Path
from rankscope.readers import find_reader
from rankscope.readers.byte_stream import PlainStream
from rankscope.readers import columns
from rankscope.readers.perfetto import decoder
from rankscope.readers.xla import events
in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + (400 << 20),) * 2)
for path in map(Path, sys.argv[1:]):
    reading, count = find_reader(path).open(path), 0
    for batch in reading.batches():
        count += len(batch.columns())
        batch.close()
    print(path.stem, count, reading.report.damage)
"""


def read_with_little_memory(paths: list[Path]) -> dict[str, int]:
    """Events by the name of the file, read by a process that may use 400 MB more than its libraries."""
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, paths)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return {line.split()[0]: int(line.split()[1]) for line in ended.stdout.splitlines()}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is limited on Linux")
def test_many_records_of_every_kind_take_little_memory(tmp_path: Path) -> None:
    paths = []
    for kind, content in records().items():
        paths.append(tmp_path / f"{kind.replace(' ', '-')}.pftrace")
        paths[-1].write_bytes(pf.thread(2, 1, 1) + content)
    plane = PlaneFile("/host:CPU")
    stats: dict[str, Any] = {"text": "té", "real": 0.1, "whole": -5, "name": Ref("other"), "bytes": b"abc"}
    event = plane.event("op", 1000, 500, **stats)
    plane.line(1, "main").extend([event] * COUNT)
    paths.append(write_space(tmp_path / "plane.pb", plane))
    counts = read_with_little_memory(paths)
    assert len(counts) == len(paths)
    assert counts["stages"] >= COUNT and counts["counters"] >= 4 * COUNT and counts["plane"] >= COUNT
    assert counts["legacy-events"] >= COUNT // 2 and counts["names"] >= COUNT - 1


@pytest.mark.slow
def test_arguments_that_refer_to_one_long_name_again_and_again_are_left_out(
    tmp_path: Path,
) -> None:
    plane = PlaneFile("/host:CPU")
    long = Ref("x" * 1_000_000)
    event = plane.event("op", 1000, 500, a=long)
    plane.line(1, "main").extend([event] * 400)
    reading = XPLANE.open(write_space(tmp_path / "a.xplane.pb", plane))
    rows = [len(batch.columns()) for batch in reading.batches()]
    assert rows[-1] == 400
    assert 100 < reading.report.events_repaired < 400
    assert "too long" in reading.report.examples[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is limited on Linux")
def test_reading_at_most_much_reserves_what_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 3_000_000)
    stream = PlainStream(path)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 30), limits[1]))
    try:
        assert len(stream.read((8 << 30) + 1)) == 3_000_000
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        stream.close()


COMMA = """comment_char %
escape_char /
LC_IDENTIFICATION
title "a decimal comma, as in German"
revision "1.0"
date "2000-01-01"
category "i18n:2012";LC_IDENTIFICATION
END LC_IDENTIFICATION
LC_NUMERIC
decimal_point ","
thousands_sep ""
grouping -1
END LC_NUMERIC
""" + "".join(
    f'{name}\ncopy "POSIX"\nEND {name}\n' for name in ("LC_CTYPE", "LC_COLLATE", "LC_MONETARY", "LC_TIME")
)
WITH_COMMA = """
import locale, sys
from pathlib import Path
locale.setlocale(locale.LC_NUMERIC, "comma.UTF-8")
assert locale.localeconv()["decimal_point"] == ","
from rankscope.readers import find_reader
for path in map(Path, sys.argv[1:]):
    for batch in find_reader(path).open(path).batches():
        print(bytes(batch.columns().args))
"""


@pytest.mark.slow
def test_numbers_have_a_point_in_any_locale(tmp_path: Path) -> None:
    """0,5 is not JSON."""
    (tmp_path / "comma").write_text(COMMA)
    words = ["localedef", "-c", "-i", str(tmp_path / "comma"), "-f", "UTF-8", str(tmp_path / "comma.UTF-8")]
    if shutil.which("localedef") is None:
        pytest.skip("no locale can be made here")
    subprocess.run(words, capture_output=True)
    if not (tmp_path / "comma.UTF-8" / "LC_NUMERIC").exists():
        pytest.skip("no locale can be made here")
    trace = tmp_path / "a.pftrace"
    args = {"half": 0.5, "small": 1e-7, "third": 1 / 3}
    trace.write_bytes(pf.thread(2, 1, 1) + pf.packet(pf.event(pf.INSTANT, 2, "i", "c", args), time=10))
    plane = PlaneFile("/host:CPU")
    plane.line(1, "main").append(plane.event("op", 1000, 500, half=0.5, third=1 / 3))
    ended = subprocess.run(
        [sys.executable, "-c", WITH_COMMA, str(trace), str(write_space(tmp_path / "b.pb", plane))],
        env=os.environ | {"LOCPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert '{"half":0.5,"small":1e-07,"third":0.3333333333333333}' in ended.stdout
    assert '{"half":0.5,"third":0.3333333333333333}' in ended.stdout


@pytest.mark.parametrize("kind", ["perfetto", "xplane"])
def test_without_the_c_parts_an_error_says_what_to_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = PlaneFile("/host:CPU")
    plane.line(1, "main").append(plane.event("op", 1000, 500))
    path = tmp_path / "a.pftrace"
    path.write_bytes(pf.thread(2, 1, 1) + pf.slices(2, (10, 5, "op", "cpu_op")))
    if kind == "xplane":
        path = write_space(tmp_path / "a.xplane.pb", plane)
    monkeypatch.setattr(native, "functions", None)
    assert find_reader(path).name == {"perfetto": "perfetto", "xplane": "xla"}[kind]
    reading = PERFETTO.open(path) if kind == "perfetto" else XPLANE.open(path)
    with pytest.raises(ReadError, match="has no C parts") as caught:
        list(reading.batches())
    assert "Perfetto traces and XLA's .xplane.pb" in caught.value.why
    assert "pip install" in caught.value.hint


def test_the_compiler_checks_the_byte_order(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    include = sysconfig.get_paths()["include"]
    words = [compiler, "-E", "-U__BYTE_ORDER__", "-D__BYTE_ORDER__=4321", f"-I{include}", "native.h"]
    ended = subprocess.run(words, cwd=ROOT / "src/rankscope/native", capture_output=True, text=True)
    assert ended.returncode and "little-endian" in ended.stderr
