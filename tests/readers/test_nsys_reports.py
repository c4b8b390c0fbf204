"""Reports as nsys writes them (exported on the way), and exports without the environment."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from nsys_files import ExportFile
from rankscope.cli import main
from rankscope.errors import ReadError, ToolError
from rankscope.readers import find_reader
from rankscope.readers.nsys.reader import NSYS
from rankscope.readers.nsys.report import NSYS_REPORT, exported
from rankscope.readers.nsys.scrub import scrub
from rankscope.store.discover import find_sources
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

SECRET = "hunter2-very-secret"


def write_report(path: Path, version: bytes = b"2023@4@4@54") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"NVIDIA Tegra Profiler Report " + version + b"-1v0.")
    return path


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that answers as nsys does: exports a prepared file, or refuses a report from 2025."""
    prepared = ExportFile(tmp_path / "prepared").environment(RANK="3", LOCAL_RANK="3", WORLD_SIZE="4")
    prepared.kernel("k", 1, 2).write()
    nsys = tmp_path / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(f"""#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version 2023.4.4.54-1v0"; exit; fi
echo "$@" >> {tmp_path}/asked
for last; do :; done
if grep -q 2025 "$last"; then
  echo "Exportation error: Report was created in Nsight Systems version (2025.5.1), newer than your current" >&2
  exit 1
fi
while [ "$1" != --output ]; do shift; done
cp {tmp_path}/prepared "$2"
""")
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nsys.parent}:/usr/bin:/bin")
    exports = tmp_path / "exports"
    exports.mkdir()
    monkeypatch.setenv("RANKSCOPE_EXPORTS", str(exports))
    return tmp_path / "asked"


def test_a_report_is_exported_once_and_read_as_its_export(stand_in: Path, tmp_path: Path) -> None:
    path = write_report(tmp_path / "run" / "x.nsys-rep")
    reader = find_reader(path)
    identity = reader.identify(path)
    assert (identity.rank, identity.world_size) == (3, 4)
    names = [batch.source.table for batch in NSYS_REPORT.open(path).batches()]
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in names
    assert len(stand_in.read_text().splitlines()) == 1


def test_an_export_beside_the_report_is_used_instead(stand_in: Path, tmp_path: Path) -> None:
    report = write_report(tmp_path / "run" / "x.nsys-rep")
    export = shutil.copy(tmp_path / "prepared", report.with_suffix(".sqlite"))
    assert exported(report) == export
    assert find_sources([report.parent]).files == (export,)
    assert not stand_in.exists()


def test_a_report_newer_than_nsys_is_explained(stand_in: Path, tmp_path: Path) -> None:
    path = write_report(tmp_path / "new.nsys-rep", b"2025@5@1@121")
    with pytest.raises(ReadError, match="too new for this nsys") as error:
        exported(path)
    assert "written by nsys 2025.5.1.121" in error.value.why and "is 2023.4.4.54" in error.value.why


def test_without_nsys_the_command_to_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = write_report(tmp_path / "x.nsys-rep")
    with pytest.raises(ToolError, match="must be exported") as error:
        exported(path)
    assert "nsys export --type sqlite x.nsys-rep" in error.value.hint and "--nsys PATH" in error.value.hint
    path.write_bytes(b"something else")
    with pytest.raises(ReadError, match="is not an nsys report"):
        exported(path)


def telling_export(path: Path) -> Path:
    """Secrets in all the places nsys puts them, and one in a range's text."""
    file = ExportFile(path).kernel("k", 1, 2)
    file.environment(API_TOKEN=SECRET, OMPI_COMM_WORLD_RANK="2", OMPI_COMM_WORLD_SIZE="4")
    file.process_environment(API_TOKEN=SECRET, HOME="/root")
    file.table(
        "TARGET_INFO_SYSTEM_ENV",
        "name value",
        [("DeviceEnvironment", f"A=1;API_TOKEN={SECRET}"), ("CpuCores", "16")],
    )
    printed = file.string(f"the token is {SECRET}")
    file.table("ProcessStreams", "globalPid filenameId contentId", [(1, 1, printed)])
    file.table("NVTX_EVENTS", "start end eventType text globalTid", [(1, 2, 59, f"with {SECRET}", 500 << 24)])
    return file.write()


def test_scrub_leaves_no_byte_of_the_environment(tmp_path: Path) -> None:
    source = telling_export(tmp_path / "report.sqlite")
    before = source.read_bytes()
    assert main(["scrub", str(source)]) == 0
    target = tmp_path / "report.rank-2.scrubbed.sqlite"
    content = target.read_bytes()
    assert SECRET.encode() in before and SECRET.encode() not in content
    assert not re.search(rb"API_TOKEN|OMPI_COMM|/root", content)
    assert source.read_bytes() == before
    identity = NSYS.identify(target)
    assert (identity.rank, identity.rank_source) == (2, "file name")
    with closing(sqlite3.connect(target)) as connection, connection:
        assert connection.execute("SELECT * FROM TARGET_INFO_SYSTEM_ENV").fetchall() == [("CpuCores", "16")]
        assert connection.execute("SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall() == [(1, 2)]
    connection.close()


def test_scrub_removes_the_secrets_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ExportFile(tmp_path / "rank_2.sqlite").kernel("k", 1, 2)
    words = [
        "train.py",
        "--api-key",
        SECRET,
        f'{{"token": "{SECRET}-2"}}',
        "-u",
        "me:pw",
        "--max-tokens",
        "64",
    ]
    file.command("python", *words)
    file.table("TARGET_INFO_SYSTEM_ENV", "name value", [("CommandLine", "mysql -p hunter3 db")])
    file.table("NVTX_EVENTS", "start end eventType text globalTid", [(1, 2, 59, f"with {SECRET}", 500 << 24)])
    assert main(["scrub", str(file.write())]) == 0
    assert "(3 secret arguments removed)" in capsys.readouterr().out
    target = tmp_path / "rank_2.scrubbed.sqlite"
    assert not re.search(rb"hunter2|hunter3|me:pw", target.read_bytes())
    with closing(sqlite3.connect(target)) as connection:
        recorded = [
            value for (value,) in connection.execute("SELECT value FROM META_DATA_CAPTURE ORDER BY rowid")
        ]
    assert recorded == [
        *("python", "train.py", "--api-key", "REDACTED", '{"token": "REDACTED"}'),
        *("-u", "me:REDACTED", "--max-tokens", "64"),
    ]


def test_scrub_overwrites_only_when_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = telling_export(tmp_path / "rank_2.sqlite")
    assert main(["scrub", str(source), "-o", str(source)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["scrub", str(source), "-o", str(source), "-f"]) == 0
    assert SECRET.encode() not in source.read_bytes()
    assert scrub(source, tmp_path / "again.sqlite").variables == 0


@pytest.mark.slow
def test_no_value_of_a_variable_reaches_the_store(tmp_path: Path) -> None:
    source = telling_export(tmp_path / "report.sqlite")
    assert main(["ingest", str(source), "-o", str(tmp_path / "run"), "-q"]) == 0
    for file in (tmp_path / "run").rglob("*"):
        if file.is_file() and file.suffix == ".json":
            assert SECRET not in file.read_text()
    run = Run(ingest([tmp_path / "run"]))
    ((found,),) = run.rows(
        "SELECT count(*) FROM events e WHERE regexp_matches(e::VARCHAR, 'TOKEN|OMPI|/root')"
    )
    assert found == 0
    assert main(["doctor", str(tmp_path / "run"), "--fail-on", "warning"]) == 3


def test_scrub_says_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scrub", str(write_report(tmp_path / "x.nsys-rep"))]) == 2
    assert "Scrub its export instead" in capsys.readouterr().err
    assert main(["scrub", str(tmp_path / "none.sqlite")]) == 2
