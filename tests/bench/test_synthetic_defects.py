"""Each defect does what it says, to the events it says, and to no others."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import UsageError
from rankscope_bench.synthetic import Plan, write
from rankscope_bench.synthetic.defects import CATALOGUE, Defect, parse_defect

Event = dict[str, Any]
CLEAN = Plan(ranks=2, events_per_rank=3_000, steps=2)
FILE = "rank-00000-of-00002.pt.trace.json"


def damaged(tmp_path: Path, *names: str, packed: bool = False) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a run whose rank 0 has these defects, and what truth.json says of them."""
    plan = Plan(
        ranks=CLEAN.ranks,
        events_per_rank=CLEAN.events_per_rank,
        steps=CLEAN.steps,
        gzip=packed,
        defects=tuple(Defect(name) for name in names),
    )
    truth = write(plan, tmp_path / "damaged")
    records: list[dict[str, Any]] = truth["defects"]
    assert [record["name"] for record in records] == list(names)
    assert all(record["rank"] == 0 for record in records)
    assert truth["files"] == sorted(
        path.name for path in (tmp_path / "damaged").iterdir() if path.name != "truth.json"
    )
    return tmp_path / "damaged", records


@pytest.fixture
def clean(tmp_path: Path) -> str:
    write(CLEAN, tmp_path / "clean")
    return (tmp_path / "clean" / FILE).read_text()


def events_of(text: str, *, strict: bool = True) -> list[Event]:
    events: list[Event] = json.loads(text, strict=strict)["traceEvents"]
    return events


def split(text: bytes) -> list[bytes]:
    body = text.partition(b'"traceEvents": [\n  {\n')[2].rpartition(b"\n  }\n  ],\n")[0]
    return body.split(b"\n  },\n  {\n")


EVENT_DEFECTS = sorted(name for name, kind in CATALOGUE.items() if kind.scope == "event")


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", [name for name in EVENT_DEFECTS if name != "no-launch"])
def test_only_the_listed_events_change(tmp_path: Path, clean: str, name: str, packed: bool) -> None:
    folder, [record] = damaged(tmp_path, name, packed=packed)
    content = (folder / record["file"]).read_bytes()
    after = split(gzip.decompress(content) if packed else content)
    before = split(clean.encode())
    changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert changed == [event["index"] for event in record["events"]]
    assert len(changed) == record["damaged"] == 20
    assert changed[-1] - changed[0] > len(before) / 6
    names = [json.loads(b"{" + before[i] + b"}")["name"] for i in changed]
    assert names == [event["name"] for event in record["events"]]


@pytest.mark.slow
def test_the_other_ranks_stay_whole(tmp_path: Path) -> None:
    write(CLEAN, tmp_path / "clean")
    folder, _ = damaged(tmp_path, "nan", "truncated")
    other = "rank-00001-of-00002.pt.trace.json"
    assert (folder / other).read_bytes() == (tmp_path / "clean" / other).read_bytes()


@pytest.mark.slow
def test_control_characters_break_strict_json_only(tmp_path: Path) -> None:
    folder, [record] = damaged(tmp_path, "control-characters")
    text = (folder / FILE).read_text()
    with pytest.raises(json.JSONDecodeError, match="control character"):
        json.loads(text)
    events = events_of(text, strict=False)
    assert {events[e["index"]]["name"][0] for e in record["events"]} == {"\x01", "\t", "\n"}


def test_invalid_utf8_cannot_be_decoded(tmp_path: Path) -> None:
    folder, [record] = damaged(tmp_path, "invalid-utf8")
    content = (folder / FILE).read_bytes()
    with pytest.raises(UnicodeDecodeError):
        content.decode()
    events = events_of(content.decode(errors="replace"))
    assert all(events[e["index"]]["name"].startswith("\ufffd") for e in record["events"])


def test_lone_surrogates_cannot_be_encoded(tmp_path: Path) -> None:
    folder, [record] = damaged(tmp_path, "lone-surrogate")
    events = events_of((folder / FILE).read_text())
    for entry in record["events"]:
        with pytest.raises(UnicodeEncodeError):
            events[entry["index"]]["name"].encode()


def test_nan_is_in_dur_and_ts(tmp_path: Path) -> None:
    folder, [record] = damaged(tmp_path, "nan")
    text = (folder / FILE).read_text()
    for word in ('"dur": NaN', '"dur": Infinity', '"ts": -Infinity'):
        assert word in text
    found: list[str] = []
    json.loads(text, parse_constant=found.append)
    assert len(found) == record["damaged"]


def test_unescaped_quotes_are_no_json(tmp_path: Path) -> None:
    folder, _ = damaged(tmp_path, "unescaped-quotes")
    with pytest.raises(json.JSONDecodeError):
        json.loads((folder / FILE).read_text())
    assert '"name": "{"device": "cpu"} ' in (folder / FILE).read_text()


@pytest.mark.slow
def test_numbers_as_strings_keep_their_values(tmp_path: Path, clean: str) -> None:
    folder, [record] = damaged(tmp_path, "numbers-as-strings")
    before, after = events_of(clean), events_of((folder / FILE).read_text())
    for entry in record["events"]:
        old, new = before[entry["index"]], after[entry["index"]]
        assert isinstance(new["ts"], str)
        assert (float(new["ts"]), float(new["dur"])) == (old["ts"], old["dur"])
        assert int(new["args"]["correlation"]) == old["args"]["correlation"]


@pytest.mark.slow
def test_missing_fields_are_missing_in_turn(tmp_path: Path, clean: str) -> None:
    folder, [record] = damaged(tmp_path, "missing-fields")
    before, after = events_of(clean), events_of((folder / FILE).read_text())
    gone = []
    for entry in record["events"]:
        old, new = before[entry["index"]], after[entry["index"]]
        (missing,) = set(old) - set(new)
        assert entry["change"] == f"no {missing}"
        assert new == {key: value for key, value in old.items() if key != missing}
        gone.append(missing)
    assert gone[:7] == ["dur", "ts", "name", "cat", "pid", "tid", "args"]


@pytest.mark.slow
def test_ts_zero_and_negative_durations(tmp_path: Path, clean: str) -> None:
    folder, records = damaged(tmp_path, "ts-zero", "negative-duration")
    before, after = events_of(clean), events_of((folder / FILE).read_text())
    assert all(after[entry["index"]]["ts"] == 0 for entry in records[0]["events"])
    for entry in records[1]["events"]:
        assert after[entry["index"]]["dur"] == -before[entry["index"]]["dur"] < 0


def test_overlapping_kernels_end_inside_the_next_one(tmp_path: Path) -> None:
    folder, [record] = damaged(tmp_path, "overlapping")
    events = events_of((folder / FILE).read_text())
    kernels = [i for i, event in enumerate(events) if event.get("cat") == "kernel" and event["tid"] == 7]
    overlaps = [
        i
        for i, j in pairwise(kernels)
        if round((events[i]["ts"] + events[i]["dur"] - events[j]["ts"]) * 1000) > 0
    ]
    assert overlaps == [entry["index"] for entry in record["events"]]


def test_no_launch_leaves_kernels_without_call_and_arrow(tmp_path: Path) -> None:
    folder, [record] = damaged(tmp_path, "no-launch")
    events = events_of((folder / FILE).read_text())
    calls = {e["args"]["correlation"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    arrows = {e["id"] for e in events if e.get("cat") == "ac2g" and e["ph"] == "s"}
    orphans = [e for e in events if e.get("cat") == "kernel" and e["args"]["correlation"] not in calls]
    assert len(orphans) == record["damaged"] == 20
    assert not arrows & {e["args"]["correlation"] for e in orphans}
    assert len(events) == CLEAN.events_per_rank - 2 * len(orphans)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_file_ends_in_mid_event(tmp_path: Path, clean: str, packed: bool) -> None:
    folder, [record] = damaged(tmp_path, "truncated", packed=packed)
    content = (folder / record["file"]).read_bytes()
    text = (gzip.decompress(content) if packed else content).decode()
    assert clean.startswith(text) or packed
    assert record["whole_events"] == 1_800
    assert record["damaged"] == 1_200
    assert text.count("\n  },\n  {\n") == 1_800
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_gzip_gives_its_first_events(tmp_path: Path, packed: bool) -> None:
    folder, [record] = damaged(tmp_path, "truncated-gzip", packed=packed)
    assert record["file"] == f"{FILE}.gz"
    content = (folder / record["file"]).read_bytes()
    with pytest.raises(EOFError):
        gzip.decompress(content)
    text = zlib.decompressobj(wbits=31).decompress(content).decode()
    assert text.count("\n  },\n  {\n") == record["whole_events"]
    assert 0 < record["whole_events"] < CLEAN.events_per_rank
    assert record["damaged"] == CLEAN.events_per_rank - record["whole_events"]


def test_files_without_a_trace_in_them(tmp_path: Path) -> None:
    plan = Plan(
        ranks=4,
        events_per_rank=2_000,
        steps=1,
        defects=tuple(
            Defect(name, rank)
            for rank, name in enumerate(("empty", "empty-events", "not-json", "other-json"))
        ),
    )
    truth = write(plan, tmp_path / "run")
    empty, no_events, not_json, other = (tmp_path / "run" / name for name in truth["files"])
    assert empty.read_bytes() == b""
    trace = json.loads(no_events.read_text())
    assert trace["traceEvents"] == []
    assert trace["distributedInfo"]["rank"] == 1
    assert trace["traceName"] == no_events.name
    assert not_json.read_text().startswith("Traceback")
    assert "traceEvents" not in json.loads(other.read_text())
    assert [record["damaged"] for record in truth["defects"]] == [2_000] * 4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "indent"), [("one-line", None), ("indented", 2)])
@pytest.mark.parametrize("packed", [False, True])
def test_other_layouts_are_exactly_what_json_dump_writes(
    tmp_path: Path, clean: str, name: str, indent: int | None, packed: bool
) -> None:
    folder, [record] = damaged(tmp_path, name, packed=packed)
    content = (folder / record["file"]).read_bytes()
    trace = json.loads(clean)
    trace["traceName"] = record["file"]
    assert (gzip.decompress(content) if packed else content).decode() == json.dumps(trace, indent=indent)
    assert record["damaged"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_no_rank_is_neither_in_the_file_nor_in_its_name(tmp_path: Path, clean: str, packed: bool) -> None:
    folder, [record] = damaged(tmp_path, "no-rank", packed=packed)
    content = (folder / record["file"]).read_bytes()
    trace = json.loads(gzip.decompress(content) if packed else content)
    assert "rank" not in record["file"]
    assert "-of-" not in record["file"]
    assert "distributedInfo" not in trace
    assert trace["traceName"] == record["file"]
    assert trace["traceEvents"] == events_of(clean)


def test_a_duplicate_claims_the_same_rank(tmp_path: Path) -> None:
    folder, [record] = damaged(tmp_path, "duplicate-rank")
    assert record["second_file"] == "rank-00000-of-00002.again.pt.trace.json"
    assert (folder / record["second_file"]).read_bytes() == (folder / FILE).read_bytes()


def test_a_defect_hits_the_rank_it_names(tmp_path: Path) -> None:
    truth = write(
        Plan(ranks=3, events_per_rank=2_000, steps=1, defects=(parse_defect("empty@2"),)), tmp_path / "run"
    )
    sizes = [(tmp_path / "run" / rank["file"]).stat().st_size for rank in truth["ranks"]]
    assert [size == 0 for size in sizes] == [False, False, True]


def test_names_of_defects_are_checked() -> None:
    assert parse_defect("nan") == Defect("nan", 0)
    assert parse_defect("nan@12") == Defect("nan", 12)
    for text in ("rust", "nan@", "nan@x", "@1"):
        with pytest.raises(UsageError, match="is not a defect"):
            parse_defect(text)


@pytest.mark.parametrize(
    "names",
    [("empty", "nan"), ("truncated", "truncated-gzip"), ("nan", "nan"), ("no-rank", "duplicate-rank")],
)
def test_defects_that_exclude_each_other_are_refused(names: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="cannot have all of"):
        Plan(ranks=1, events_per_rank=2_000, defects=tuple(Defect(name) for name in names))
    Plan(ranks=2, events_per_rank=2_000, defects=tuple(Defect(name, i) for i, name in enumerate(names)))


def test_defects_combine_events_first_then_the_cut_then_the_name(tmp_path: Path) -> None:
    plan = Plan(
        ranks=1,
        events_per_rank=2_000,
        steps=1,
        defects=(Defect("no-rank"), Defect("truncated"), Defect("nan")),
    )
    truth = write(plan, tmp_path / "run")
    assert [record["name"] for record in truth["defects"]] == ["nan", "truncated", "no-rank"]
    assert [record["file"] for record in truth["defects"]] == truth["files"] * 3
    text = (tmp_path / "run" / truth["files"][0]).read_text()
    assert "NaN" in text
    assert "distributedInfo" not in text
    assert "traceName" not in text


def test_a_missing_rank_cannot_be_damaged() -> None:
    with pytest.raises(UsageError, match="cannot be damaged"):
        Plan(ranks=2, events_per_rank=2_000, missing=(0,), defects=(Defect("nan"),))
