"""Exported traces, read back: Perfetto's with Perfetto's own classes, Chrome's with json and with our reader."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis.core.scope import Scope
from rankscope.cli import main
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.views.export.chrome import write_chrome
from rankscope.views.export.perfetto import MANIFEST_NAME, write_archive, write_perfetto
from rankscope_bench.synthetic import Plan, write

pb = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
    reason="needs the perfetto package (pip install 'rankscope[dev]')",
)

Slice = tuple[int, str, int, int, str, str]
"""Rank, track, start, duration, name, category."""


class Parsed:
    """What a reader of the format sees: begins and ends matched per track, interned names resolved."""

    def __init__(self, content: bytes) -> None:
        trace = pb.Trace()
        trace.ParseFromString(content)
        self.packets = list(trace.packet)
        self.descriptors = {
            p.track_descriptor.uuid: p.track_descriptor
            for p in self.packets
            if p.HasField("track_descriptor")
        }
        self.slices: list[Slice] = []
        self.args: list[Any] = []
        self.leaving: Counter[int] = Counter()
        self.entering: Counter[int] = Counter()
        self.instants: list[tuple[int, str, int, str]] = []
        self.counters: list[tuple[int, str, int, float]] = []
        self._read()

    def place(self, uuid: int) -> tuple[int, str]:
        """The rank and the name of a track."""
        track = self.descriptors[uuid]
        process = self.descriptors[track.parent_uuid].process
        assert process.process_name == f"rank {process.pid - 1}"
        return process.pid - 1, track.name

    def _read(self) -> None:
        names: dict[tuple[int, str, int], str] = {}
        stacks: dict[int, list[tuple[int, str, str]]] = {}
        clock: dict[int, int] = {}
        for packet in self.packets:
            sequence = packet.trusted_packet_sequence_id
            for table in ("event_names", "event_categories", "debug_annotation_names"):
                for entry in getattr(packet.interned_data, table):
                    names[sequence, table, entry.iid] = entry.name
            if not packet.HasField("track_event"):
                continue
            event = packet.track_event
            rank, track = self.place(event.track_uuid)
            if event.type != event.TYPE_INSTANT:  # they follow when their track's slices are done
                assert packet.timestamp >= clock.get(event.track_uuid, 0), "time goes back on a track"
                clock[event.track_uuid] = packet.timestamp
            stack = stacks.setdefault(event.track_uuid, [])
            name = names.get((sequence, "event_names", event.name_iid), "")
            category = "".join(names[sequence, "event_categories", i] for i in event.category_iids)
            if event.type == event.TYPE_SLICE_BEGIN:
                stack.append((packet.timestamp, name, category))
                self.leaving.update(event.flow_ids)
                self.entering.update(event.terminating_flow_ids)
                for note in event.debug_annotations:
                    assert names[sequence, "debug_annotation_names", note.name_iid] == "args"
                    self.args.append(json.loads(note.legacy_json_value))
            elif event.type == event.TYPE_SLICE_END:
                start, name, category = stack.pop()
                self.slices.append((rank, track, start, packet.timestamp - start, name, category))
            elif event.type == event.TYPE_INSTANT:
                self.instants.append((rank, track, packet.timestamp, name))
            elif event.type == event.TYPE_COUNTER:
                self.counters.append((rank, track, packet.timestamp, event.double_counter_value))
        assert not any(stacks.values()), "a slice never ends"


def perfetto(run: Run, scope: Scope | None = None, with_args: bool = True) -> Parsed:
    out = io.BytesIO()
    count = write_perfetto(run, scope or Scope(), out, with_args)
    parsed = Parsed(out.getvalue())
    assert count == len(parsed.slices)
    return parsed


def chrome(run: Run, scope: Scope | None = None, with_args: bool = True) -> list[dict[str, Any]]:
    out = io.BytesIO()
    write_chrome(run, scope or Scope(), out, with_args)
    events: list[dict[str, Any]] = json.loads(out.getvalue())["traceEvents"]
    return events


def stored(run: Run, where: str = "true") -> Counter[Slice]:
    return Counter(
        run.rows(
            "SELECT rank, t.label, start_ns, dur_ns, name, category FROM slices s "
            f"JOIN tracks t USING (rank, segment, track) WHERE {where}"
        )
    )


def on_tracks(slices: list[Slice]) -> Counter[Slice]:
    """Lanes beside a track count as the track."""
    return Counter((rank, track.partition(", overlapping")[0], *rest) for rank, track, *rest in slices)  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp-gloo4", "gpt-h200-stack", "seqpar-gloo4-slow2"])
def test_perfetto_has_every_slice_and_arrow(name: str, open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / name)
    parsed = perfetto(run)
    assert on_tracks(parsed.slices) == stored(run)
    ((arrows,),) = run.rows("SELECT count(*) FROM links WHERE source IS NOT NULL AND target IS NOT NULL")
    assert arrows and len(parsed.leaving) == arrows
    assert set(parsed.leaving.values()) == {1} and parsed.leaving == parsed.entering
    ((with_args,),) = run.rows(
        "SELECT count(*) FROM slices JOIN events USING (rank, segment, id) WHERE args IS NOT NULL"
    )
    assert len(parsed.args) == with_args
    processes = [d.process.process_name for d in parsed.descriptors.values() if d.HasField("process")]
    assert processes == [f"rank {rank}" for rank in run.ranks]


def test_perfetto_of_some_ranks_and_steps(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "seqpar-gloo4-slow2")
    ((first,),) = run.rows("SELECT min(step) FROM steps")
    parsed = perfetto(run, Scope(frozenset({1, 3}), (first + 1, first + 2)), with_args=False)
    assert on_tracks(parsed.slices) == stored(
        run, f"rank IN (1, 3) AND step BETWEEN {first + 1} AND {first + 2}"
    )
    assert parsed.args == []
    assert parsed.leaving == parsed.entering, "arrows to slices that are not there are left out"


@pytest.mark.slow
def test_overlaps_are_kept_on_extra_tracks(tmp_path: Path) -> None:
    kernels = [
        kernel_event("a", 10, 10, 1),
        kernel_event("b", 15, 10, 2),
        kernel_event("c", 16, 2, 3),
        kernel_event("d", 17, 20, 4),
        kernel_event("empty", 17, 0, 5),
        kernel_event("e", 40, 1.234, 6),
    ]
    run = open_trace(write_kineto(tmp_path / "rank-0.json", kernels))
    parsed = perfetto(run)
    assert on_tracks(parsed.slices) == stored(run)
    places = {name: track for _, track, _, _, name, _ in parsed.slices}
    assert places["a"] == places["e"] == "GPU 0 stream 7"
    assert places["b"] == "GPU 0 stream 7, overlapping 1"
    assert places["d"] == "GPU 0 stream 7, overlapping 2"
    threads = {e["name"]: e["tid"] for e in chrome(run) if e["ph"] == "X"}
    assert len({threads["a"], threads["b"], threads["d"]}) == 3


@pytest.mark.slow
def test_counters_marks_and_memory(tmp_path: Path) -> None:
    events = [
        slice_event("op", 0, 100),
        {"ph": "i", "s": "t", "cat": "marks", "name": "here", "pid": 1, "tid": 1, "ts": 5},
        {"ph": "C", "cat": "c", "name": "power", "pid": 1, "tid": 1, "ts": 6, "args": {"W": 311.5}},
        {
            "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 7,
            "args": {"Total Reserved": 4096, "Total Allocated": 1024, "Bytes": 1024, "Addr": 1,
                     "Device Id": 0, "Device Type": 1},
        },
    ]  # fmt: skip
    run = open_trace(write_kineto(tmp_path / "rank-0.json", events))
    parsed = perfetto(run)
    assert [(ts, name) for _, _, ts, name in parsed.instants] == [(5_000, "here")]
    assert sorted(parsed.counters) == [
        (0, "GPU 0 memory allocated", 7_000, 1024.0),
        (0, "GPU 0 memory reserved", 7_000, 4096.0),
        (0, "power W", 6_000, 311.5),
    ]
    units = {d.name: d.counter.unit for d in parsed.descriptors.values() if d.HasField("counter")}
    assert units["GPU 0 memory allocated"] == pb.CounterDescriptor.UNIT_SIZE_BYTES
    assert sum(e["ph"] == "C" for e in chrome(run)) == 3


@pytest.mark.slow
def test_several_files_of_one_rank(tmp_path: Path) -> None:
    for number, start in enumerate((1000, 5000)):
        header = {"distributedInfo": {"rank": 2, "world_size": 4}}
        write_kineto(tmp_path / f"run.{number}.pt.trace.json", [slice_event("op", start, 5)], **header)
    parsed = perfetto(Run(ingest([tmp_path])))
    assert [d.process.process_name for d in parsed.descriptors.values() if d.HasField("process")] == [
        "rank 2"
    ]
    assert [(rank, start) for rank, _, start, *_ in parsed.slices] == [(2, 0), (2, 4_000_000)]


@pytest.mark.slow
def test_names_that_are_not_text(tmp_path: Path) -> None:
    events = [slice_event("half \ud83d", 0, 1), slice_event("</script>\u2028µ", 2, 1)]
    run = open_trace(write_kineto(tmp_path / "rank-0.json", events))
    assert "</script>\u2028µ" in {name for *_, name, _ in perfetto(run).slices}
    assert len([e for e in chrome(run) if e["ph"] == "X"]) == 2


@pytest.mark.slow
def test_chrome_has_every_slice(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "ddp-gloo4")
    events = chrome(run)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [
        (e["pid"], names[e["pid"], e["tid"]], round(e["ts"] * 1000), round(e["dur"] * 1000), e["name"], e["cat"])
        for e in events
        if e["ph"] == "X"
    ]  # fmt: skip
    assert on_tracks(slices) == stored(run)
    starts = {e["id"] for e in events if e["ph"] == "s"}
    assert starts and starts == {e["id"] for e in events if e["ph"] == "f"}


@pytest.mark.slow
def test_chrome_can_be_read_again(tmp_path: Path, open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "ddp-gloo4")
    out = io.BytesIO()
    write_chrome(run, Scope(frozenset({1})), out)
    (tmp_path / "rank-1.json").write_bytes(out.getvalue())
    again = open_trace(tmp_path / "rank-1.json")
    figures = (
        "SELECT name, class, count(*), sum(dur_ns) FROM gpu WHERE rank = 1 GROUP BY ALL ORDER BY 4 DESC, 1"
    )
    assert again.rows(figures) == run.rows(figures)


@pytest.mark.slow
def test_an_archive_has_each_file_on_its_own_clock(tmp_path: Path) -> None:
    """The times of a member and its offset in the manifest give the times of the run; the planted clocks come back."""
    plan = Plan(ranks=3, events_per_rank=2_500, max_offset_ns=5_000_000, max_drift_ppm=0.0)
    truth = write(plan, tmp_path / "run")
    run = open_trace(tmp_path / "run")
    out = io.BytesIO()
    count = write_archive(run, Scope(), out, with_args=False)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        content = {m.name: file.read() for m in archive if (file := archive.extractfile(m))}
    assert content[MANIFEST_NAME].startswith(b'{"perfetto_manifest"')
    manifest = json.loads(content.pop(MANIFEST_NAME))["perfetto_manifest"]
    reference = "rank-00000.perfetto-trace"
    assert [entry["path"] for entry in manifest["files"]] == list(content)
    assert manifest["version"] == 1 and manifest["trace_time"] == {"clock": "BOOTTIME", "file": reference}
    merged: Counter[Any] = Counter()
    for entry, clock in zip(manifest["files"], truth["clocks"], strict=True):
        assert entry["machine"] == {"name": f"rank {clock['rank']}"}
        offset = 0
        if entry["path"] != reference:
            assert entry["clocks"]["clock"] == "BOOTTIME"
            assert entry["clocks"]["sync_to"] == {"file": reference, "clock": "BOOTTIME"}
            offset = entry["clocks"]["offset_ns"]
        assert abs(offset + clock["offset_ns"] - truth["clocks"][0]["offset_ns"]) < 1_000
        for rank, track, start, length, name, category in Parsed(content[entry["path"]]).slices:
            assert start >= 0 and start + offset >= 0
            merged[rank, track.partition(", overlapping")[0], start + offset, length, name, category] += 1
    assert merged.total() == count
    wanted = stored(run)
    apart = min(key[2] for key in merged) - min(key[2] for key in wanted)
    assert {(*key[:2], key[2] - apart, *key[3:]): n for key, n in merged.items()} == wanted


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, cache = str(DATA / "seqpar-gloo4-slow2"), str(tmp_path / "cache")
    target = tmp_path / "out" / "run.perfetto-trace"
    words = ["export", source, "-t", "perfetto", "--cache", cache, "-q", "-o", str(target)]
    assert main(words) == 0
    assert f"of 4 ranks to {target}" in capsys.readouterr().out
    whole = Parsed(target.read_bytes()).slices
    assert main(words) == 2, "nothing is overwritten unasked"
    assert main([*words, "--gzip", "--ranks", "2"]) == 0
    with gzip.open(f"{target}.gz") as packed:
        assert on_tracks(Parsed(packed.read()).slices) == on_tracks([s for s in whole if s[0] == 2])
    assert sorted(p.name for p in target.parent.iterdir()) == [target.name, f"{target.name}.gz"]
    packed_archive = tmp_path / "run.perfetto.tar.gz"
    assert main([*words[:-1], str(packed_archive), "--archive", "--ranks", "1-2"]) == 0
    with tarfile.open(packed_archive) as archive:
        assert archive.getnames() == [MANIFEST_NAME, "rank-00001.perfetto-trace", "rank-00002.perfetto-trace"]


def test_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(write_kineto(tmp_path / "rank-0.json", [slice_event("op", 0, 1)]))
    assert main(["export", source, "-t", "csv", "--gzip"]) == 2
    assert main(["export", source, "-t", "chrome", "--archive"]) == 2
    blocked = tmp_path / "file"
    blocked.touch()
    words = ["export", source, "-t", "chrome", "-q"]
    assert main([*words, "-o", str(blocked / "x.json")]) == 1
    assert "cannot write" in capsys.readouterr().err
