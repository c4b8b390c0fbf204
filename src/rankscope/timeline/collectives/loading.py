"""Reads the collectives of a run from its views into arrays, with their process groups, and matches them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.collective_kinds import KINDS, POINT_TO_POINT
from rankscope.store.arrays import NONE, Ints, number_rows
from rankscope.store.index import SegmentEntry
from rankscope.store.separate_runs import SESSION_GAP_NS, runs_among
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.collectives.groups import (
    UNKNOWN,
    Group,
    groups_of_threads,
    header_groups,
    recorded_group,
)
from rankscope.timeline.collectives.matching import match_collectives

if TYPE_CHECKING:
    import duckdb

_DTYPE_BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4, "float16": 2,
    "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "bytes": 1,
}  # fmt: skip
"""NCCL's own files have sizes in bytes, without a type."""


def matched_collectives(found: Collectives, segments: Sequence[SegmentEntry]) -> Collectives:
    """The collectives of all ranks, matched. `segments` are those with times."""
    return match_collectives(found, _of_file(found, recording_sessions(segments)))


def shifted(rows: Collectives, shifts: Mapping[tuple[int, int], int]) -> Collectives:
    """The same entries with the times of each file shifted."""
    by = _of_file(rows, shifts)
    called = np.where(rows.call_start == NONE, NONE, rows.call_start + by)
    return replace(rows, start=rows.start + by, end=rows.end + by, call_start=called)


def _of_file(rows: Collectives, values: Mapping[tuple[int, int], int]) -> Ints:
    """For each entry the value of its file, which (rank, segment) names."""
    files, place = number_rows([rows.rank, rows.segment])
    return np.array([values[rank, segment] for rank, segment in files.tolist()], dtype=np.int64)[place]


def load_collectives(connection: duckdb.DuckDBPyConnection, segments: Sequence[SegmentEntry]) -> Collectives:
    """Every entry of the view `collectives`, sorted by rank and start, before matching. `connection` has the views."""
    labels, columns = _columns(connection)
    groups, group_of_label = _groups(segments, labels)
    dtypes = sorted({row["dtype"] for row in labels if row["dtype"] is not None})
    code = columns["label"]

    def of_label(values: list[int]) -> Ints:
        return np.array(values, dtype=np.int64)[code] if len(code) else code

    kind = of_label([KINDS.index(row["kind"]) if row["kind"] in KINDS else len(KINDS) - 1 for row in labels])
    group = of_label(group_of_label)
    return Collectives(
        rank=columns["rank"],
        segment=columns["segment"],
        slice=columns["id"],
        track=columns["track"],
        group=group,
        kind=kind,
        dtype=of_label([dtypes.index(row["dtype"]) if row["dtype"] else NONE for row in labels]),
        bytes=_bytes(
            kind,
            columns["in_elements"],
            columns["out_elements"],
            of_label([_element_bytes(row["dtype"]) for row in labels]),
            np.array([found.size or 0 for found in groups], dtype=np.int64)[group],
        ),
        seq=columns["seq"],
        step=columns["step"],
        start=columns["start_ns"],
        end=columns["start_ns"] + columns["dur_ns"],
        on_device=of_label([row["place"] == "device" for row in labels]).astype(bool),
        call=columns["call"],
        call_start=columns["call_ns"],
        peer=columns["peer"],
        in_elements=columns["in_elements"],
        out_elements=columns["out_elements"],
        match=np.full(len(code), NONE),
        groups=tuple(_with_seen_members(groups, group, columns["rank"])),
        dtypes=tuple(dtypes),
    )


_LABELS = ("place", "kind", "dtype", "group_name", "group_description", "group_ranks", "group_size")


def _columns(connection: duckdb.DuckDBPyConnection) -> tuple[list[dict[str, Any]], dict[str, Ints]]:
    """The distinct combinations of text columns, and the numeric columns; `label` indexes the former.

    A collective without a group name keeps its rank, segment and track in the label: the group is inferred from
    the thread or stream it runs on.
    """
    optional = ("step", "call", "call_ns", "seq", "in_elements", "out_elements", "peer")
    if not connection.execute("SELECT 1 FROM collectives LIMIT 1").fetchall():
        numeric = ("label", "rank", "segment", "id", "track", "start_ns", "dur_ns", *optional)
        return [], {name: np.empty(0, dtype=np.int64) for name in numeric}
    cursor = connection.cursor()  # has temporary tables of its own
    texts = ", ".join(f"c.{name}" for name in _LABELS)
    where = ", ".join(
        f"CASE WHEN c.group_name IS NULL THEN c.{name} END AS of_{name}"
        for name in ("rank", "segment", "track")
    )
    cursor.execute(f"""
        CREATE TEMP TABLE collective_labels AS
        SELECT row_number() OVER () - 1 AS label, *
        FROM (SELECT DISTINCT {texts}, {where} FROM collectives c ORDER BY ALL)
    """)
    same = " AND ".join(f"l.{name} IS NOT DISTINCT FROM c.{name}" for name in _LABELS)
    same += "".join(
        f" AND l.of_{name} IS NOT DISTINCT FROM CASE WHEN c.group_name IS NULL THEN c.{name} END"
        for name in ("rank", "segment", "track")
    )
    numbers = ", ".join(f"coalesce(c.{name}, {NONE})::BIGINT AS {name}" for name in optional)
    columns: dict[str, Any] = cursor.execute(f"""
        SELECT l.label, c.rank::BIGINT AS rank, c.segment::BIGINT AS segment, c.id, c.track::BIGINT AS track,
               c.start_ns, c.dur_ns, {numbers}
        FROM collectives c JOIN collective_labels l ON {same}
        ORDER BY c.rank, c.start_ns, c.id
    """).fetchnumpy()
    found = cursor.execute("""
        SELECT l.*, t.tid, t.stream FROM collective_labels l
        LEFT JOIN tracks t ON t.rank = l.of_rank AND t.segment = l.of_segment AND t.track = l.of_track
        ORDER BY l.label
    """)
    names = [column[0] for column in found.description or ()]
    labels = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    cursor.close()
    return labels, columns


def _groups(segments: Sequence[SegmentEntry], labels: list[dict[str, Any]]) -> tuple[list[Group], list[int]]:
    """The process groups, and the index of each label's group."""
    listed = {
        (entry.rank, entry.segment): header_groups(entry.manifest.get("header", {})) for entry in segments
    }
    everywhere = list({group: None for groups in listed.values() for group in groups})
    unnamed = _unnamed_groups(labels, listed)
    groups: dict[Group, int] = {}
    places = []
    for number, row in enumerate(labels):
        if row["group_name"] is None:
            group = unnamed[number]
        else:
            group = recorded_group(
                row["group_name"], row["group_description"], row["group_ranks"], row["group_size"], everywhere
            )
        places.append(groups.setdefault(group, len(groups)))
    return list(groups), places


def _with_seen_members(groups: Sequence[Group], group: Ints, rank: Ints) -> Iterator[Group]:
    """NCCL's files name communicators without their members: where all have a file, these are the members."""
    pairs = number_rows([group, rank])[0]
    for number, one in enumerate(groups):
        seen = tuple(pairs[pairs[:, 0] == number, 1].tolist()) if len(pairs) else ()
        whole = one.ranks is None and one.is_named and len(seen) == one.size
        yield replace(one, ranks=seen) if whole else one


def _unnamed_groups(
    labels: list[dict[str, Any]], listed: dict[tuple[int, int], list[Group]]
) -> dict[int, Group]:
    """Groups of collectives without metadata, by label: from the header, threads and streams."""
    by_file: dict[tuple[int, int], list[int]] = {}
    for number, row in enumerate(labels):
        if row["group_name"] is None:
            by_file.setdefault((row["of_rank"], row["of_segment"]), []).append(number)
    found: dict[int, Group] = {}
    for file, numbers in by_file.items():
        known = listed.get(file, [])
        on_workers = [
            n for n in numbers if labels[n]["place"] == "host" and labels[n]["kind"] not in POINT_TO_POINT
        ]
        threads = sorted({labels[n]["tid"] or "" for n in on_workers})
        workers = groups_of_threads(threads, known)
        streams = sorted({labels[n]["stream"] or 0 for n in numbers if labels[n]["place"] == "device"})
        for n in numbers:
            row = labels[n]
            if len(known) == 1:
                found[n] = known[0]
            elif row["place"] == "host":
                found[n] = workers.get(row["tid"] or "", Group(UNKNOWN))
            else:  # NCCL uses one stream per process group, numbered in order of creation
                place = streams.index(row["stream"] or 0)
                found[n] = Group(UNKNOWN if len(streams) == 1 else f"{UNKNOWN}{place}")
    return found


def _element_bytes(dtype: str | None) -> int:
    return 1 if (dtype or "").startswith("float8") else _DTYPE_BYTES.get(dtype or "", 0)


def _bytes(kind: Ints, sent: Ints, received: Ints, element: Ints, size: Ints) -> Ints:
    """Message size S of nccl-tests: the bytes that are reduced, or the contributions of all ranks (docs/facts.md)."""
    gathers = np.isin(kind, [KINDS.index("all_gather"), KINDS.index("gather")])
    scatters = kind == KINDS.index("scatter")
    receives = kind == KINDS.index("recv")
    elements = np.where(gathers, np.where((sent != NONE) & (size > 0), sent * size, received), sent)
    elements = np.where(scatters, np.where((received != NONE) & (size > 0), received * size, sent), elements)
    elements = np.where(receives & (received != NONE), received, elements)
    return np.where((elements >= 0) & (element > 0), elements * element, NONE)


def recording_sessions(segments: Sequence[SegmentEntry]) -> dict[tuple[int, int], int]:
    """A number for each file: files with the same number were recorded by the same job at the same time.

    The job is compared only where every file names one, the time only where every file has a wall-clock time.
    """
    by_job = all(entry.job for entry in segments)
    by_time = all(entry.has_wall_clock for entry in segments)
    of_run = {
        id(entry): number for number, run in enumerate(runs_among(segments)[0]) for entry in run.entries
    }
    period, reach = 0, 0
    keys: dict[tuple[int, int], tuple[int, int, str]] = {}
    for entry in sorted(segments, key=lambda entry: entry.unix_origin_ns):
        if keys and by_time and entry.unix_origin_ns > reach + SESSION_GAP_NS:
            period += 1
        reach = max(reach, entry.unix_end_ns)
        keys[entry.rank, entry.segment] = of_run[id(entry)], period, entry.job if by_job else ""
    known = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
    return {file: known[key] for file, key in keys.items()}
