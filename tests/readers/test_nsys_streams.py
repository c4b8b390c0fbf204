"""Recordings of nsys without a report, with a fake of the importer; the real one: integration/test_nsys_failures.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope import tools
from rankscope.errors import EmptyTraceError, RankscopeError, ReadError, ToolError
from rankscope.readers.nsys.stream import report_of
from rankscope.store.discover import find_sources

HEAD = b"U3w[END]NVIDIA Nsight Systems Stream 2023.4.4.54-234433681190v0!\n"
FAKE_IMPORTER = """#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems $FAKE_VERSION-1v0"; exit 0; fi
if [ -n "$FAKE_REFUSAL" ]; then echo "$FAKE_REFUSAL"; exit 1; fi
[ -d "$LD_LIBRARY_PATH" ] && printf "report of $2" >"$4"
"""


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording, and an nsys with an importer of its version."""
    host = tmp_path / "nsight" / "host-linux-x64"
    host.mkdir(parents=True)
    nsys = tmp_path / "nsight" / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text('#!/bin/sh\necho "version 2023.4.4.54"\n')
    (host / "QdstrmImporter").write_text(FAKE_IMPORTER)
    for program in (nsys, host / "QdstrmImporter"):
        program.chmod(0o755)
    monkeypatch.setenv(tools.NSYS_VARIABLE, str(nsys))
    monkeypatch.setenv("FAKE_VERSION", "2023.4.4.54")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    path = tmp_path / "run" / "rank-00003.qdstrm"
    path.parent.mkdir()
    path.write_bytes(HEAD)
    return path


def test_a_report_beside_the_recording(stream: Path, tmp_path: Path) -> None:
    report = report_of(stream, tmp_path / "store", writable=True)
    assert report == stream.with_suffix(".nsys-rep")
    assert report.read_text() == f"report of {stream}"
    report.write_text("kept")
    assert report_of(stream, tmp_path / "store", writable=True).read_text() == "kept"
    assert [path.name for path in stream.parent.iterdir() if path.name.startswith(".")] == []


def test_a_read_only_folder(stream: Path, tmp_path: Path) -> None:
    report = report_of(stream, tmp_path / "store", writable=False)
    assert report.name == "rank-00003.nsys-rep"
    assert report.is_relative_to(tmp_path / "store")
    assert not stream.with_suffix(".nsys-rep").exists()


@pytest.mark.parametrize(
    ("version", "refusal", "error", "says"),
    [
        ("2024.5.1.9", "", ToolError, "convert it, and the one here is 2024.5.1.9"),
        ("2023.4.4.54", "Invalid file.", ReadError, "Invalid file."),
    ],
)
def test_what_cannot_be_converted(
    stream: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    refusal: str,
    error: type[RankscopeError],
    says: str,
) -> None:
    monkeypatch.setenv("FAKE_VERSION", version)
    monkeypatch.setenv("FAKE_REFUSAL", refusal)
    with pytest.raises(error) as caught:
        report_of(stream, stream.parent, writable=True)
    assert says in caught.value.why
    assert list(stream.parent.iterdir()) == [stream]


def test_a_file_that_is_no_recording(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.write_bytes(b"")
    with pytest.raises(EmptyTraceError):
        report_of(stream, stream.parent, writable=True)
    stream.write_bytes(b"something else")
    monkeypatch.setenv("FAKE_REFUSAL", "Wrong format.")
    with pytest.raises(ReadError, match="cannot be converted"):
        report_of(stream, stream.parent, writable=True)


def test_of_several_installations_the_one_of_that_version(stream: Path, tmp_path: Path) -> None:
    """As in /opt/nvidia/nsight-systems: a folder for each version; the nsys on PATH is a newer one."""
    for version in ("2023.4.4", "2024.5.1"):
        host = tmp_path / "opt" / version / "host-linux-x64"
        host.mkdir(parents=True)
        (host / "QdstrmImporter").write_text(FAKE_IMPORTER.replace("$FAKE_VERSION", f"{version}.54"))
        (host / "QdstrmImporter").chmod(0o755)
    newer = tmp_path / "opt" / "2024.5.1" / "target-linux-x64" / "nsys"
    found = tools.nsys_importer(newer, (2023, 4, 4, 54))
    assert found is not None
    assert found.path == tmp_path / "opt" / "2023.4.4" / "host-linux-x64" / "QdstrmImporter"
    other = tools.nsys_importer(newer, (2022, 1))
    assert other is not None
    assert other.version == (2024, 5, 1, 54)


def test_a_folder_with_only_recordings_is_not_no_trace(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tools.NSYS_VARIABLE, "/no/such/nsys")
    stream.with_name("rank-00004.qdstrm").write_bytes(HEAD)
    with pytest.raises(ToolError) as caught:
        find_sources([stream.parent])
    assert "rank-00003.qdstrm must be converted before it can be read (1 more" in caught.value.message
    assert "QdstrmImporter -i" in caught.value.hint
    stream.with_suffix(".sqlite").write_bytes(b"")
    with pytest.raises(RankscopeError):
        find_sources([stream.parent])
