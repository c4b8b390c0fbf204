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

from conftest import ROOT
from rankscope import native
from rankscope.errors import ReadError
from rankscope.readers import find_reader
from rankscope.readers.byte_stream import PlainStream
from rankscope.readers.xla.xplane import XPLANE
from xspace_files import PlaneFile, Ref, write_space

COUNT = 20_000


LIMITED = """
import resource, sys
from pathlib import Path
from rankscope.readers import find_reader
from rankscope.readers.byte_stream import PlainStream
from rankscope.readers import columns
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
def test_many_records_take_little_memory(tmp_path: Path) -> None:
    plane = PlaneFile("/host:CPU")
    stats: dict[str, Any] = {"text": "té", "real": 0.1, "whole": -5, "name": Ref("other"), "bytes": b"abc"}
    event = plane.event("op", 1000, 500, **stats)
    plane.line(1, "main").extend([event] * COUNT)
    counts = read_with_little_memory([write_space(tmp_path / "plane.pb", plane)])
    assert counts["plane"] >= COUNT


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
    plane = PlaneFile("/host:CPU")
    plane.line(1, "main").append(plane.event("op", 1000, 500, half=0.5, small=1e-7, third=1 / 3))
    ended = subprocess.run(
        [sys.executable, "-c", WITH_COMMA, str(write_space(tmp_path / "b.pb", plane))],
        env=os.environ | {"LOCPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert '{"half":0.5,"small":1e-07,"third":0.3333333333333333}' in ended.stdout


def test_without_the_c_parts_an_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = PlaneFile("/host:CPU")
    plane.line(1, "main").append(plane.event("op", 1000, 500))
    path = write_space(tmp_path / "a.xplane.pb", plane)
    monkeypatch.setattr(native, "functions", None)
    assert find_reader(path) is XPLANE
    with pytest.raises(ReadError, match="has no C parts") as caught:
        list(XPLANE.open(path).batches())
    assert "XLA's .xplane.pb" in caught.value.why
    assert "pip install" in caught.value.hint


def test_the_compiler_checks_the_byte_order(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    include = sysconfig.get_paths()["include"]
    words = [compiler, "-E", "-U__BYTE_ORDER__", "-D__BYTE_ORDER__=4321", f"-I{include}", "native.h"]
    ended = subprocess.run(words, cwd=ROOT / "src/rankscope/native", capture_output=True, text=True)
    assert ended.returncode and "little-endian" in ended.stderr
