"""Reads the collectives of a run from its views into arrays, with their process groups. `matching` matches them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.collective_kinds import BATCHED, KINDS, POINT_TO_POINT, element_bytes
from rankscope.model import ITERATIONS
from rankscope.store.arrays import NONE, Ints, number_rows, unique_values
from rankscope.store.derived import COLLECTIVES, Table
from rankscope.store.index import BY_ROLE, SegmentEntry
from rankscope.store.separate_runs import SESSION_GAP_NS, runs_among
from rankscope.timeline.collectives.entries import (
    UNKNOWN,
    Collectives,
    Group,
    Message,
    header_groups,
    in_role,
    listed_groups,
    recorded_group,
    unknown_group,
)
from rankscope.timeline.collectives.matching import match_collectives

if TYPE_CHECKING:
    import duckdb

KEPT = Table[Collectives](COLLECTIVES, Collectives)
"""The matched collectives of these files at these places on the time axis."""


def matched_collectives(rows: Collectives, segments: Sequence[SegmentEntry]) -> Collectives:
    """The collectives of all ranks, matched. `segments` are those with times. Numbers of inferred iterations are not
    used: each rank counts from its own first one."""
    inferred = any(entry.manifest["steps_source"] == ITERATIONS for entry in segments)
    usable = replace(rows, step=np.full(len(rows.step), NONE)) if inferred else rows
    return replace(match_collectives(usable, _of_file(rows, recording_sessions(segments))), step=rows.step)


def shifted(rows: Collectives, shifts: Mapping[tuple[int, int], int]) -> Collectives:
    """The same entries with the times of each file shifted."""
    by = _of_file(rows, shifts)
    called = np.where(rows.call_start == NONE, NONE, rows.call_start + by)
    return replace(rows, start=rows.start + by, end=rows.end + by, call_start=called)


def _of_file(rows: Collectives, values: Mapping[tuple[int, int], int]) -> Ints:
    """For each entry the value of its file, which (rank, segment) names."""
    files, file_of = number_rows([rows.rank, rows.segment])
    return np.array([values[rank, segment] for rank, segment in files.tolist()], dtype=np.int64)[file_of]


def load_collectives(connection: duckdb.DuckDBPyConnection, segments: Sequence[SegmentEntry]) -> Collectives:
    """Every entry of the view `collectives`, sorted by rank and start, before matching. `connection` has the views."""
    roles = {entry.first_rank: entry.role for entry in segments if entry.rank_source == BY_ROLE}
    labels, columns = _columns(connection, sorted(roles))
    groups, group_of_label = _groups(segments, labels, roles)
    batches, batch_of_label = _batches(labels, roles)
    dtypes = sorted({row["dtype"] for row in labels if row["dtype"] is not None})
    code = columns["label"]

    def of_label(values: list[int]) -> Ints:
        return np.array(values, dtype=np.int64)[code] if len(code) else code

    if roles:
        first = of_label([row["first_rank"] for row in labels])
        columns["peer"] = np.where(columns["peer"] == NONE, NONE, columns["peer"] + first)
    kind = of_label([KINDS.index(row["kind"]) if row["kind"] in KINDS else len(KINDS) - 1 for row in labels])
    group = of_label(group_of_label)
    rows = Collectives(
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
            of_label([element_bytes(row["dtype"]) for row in labels]),
            np.array([each.size or 0 for each in groups], dtype=np.int64)[group],
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
        batch=of_label(batch_of_label),
        sends=np.empty(0, dtype=np.int64),
        recvs=np.empty(0, dtype=np.int64),
        groups=tuple(_with_seen_members(groups, group, columns["rank"])),
        dtypes=tuple(dtypes),
        batches=batches,
    )
    rows = _with_inferred_groups(rows, segments, labels, code)
    if (rows.point_to_point & ~rows.on_device & (rows.peer == NONE)).any():
        from rankscope.timeline.collectives.inferred import infer_peers

        session = _of_file(rows, recording_sessions(segments))
        rows = replace(rows, peer=infer_peers(rows, session, {entry.rank: entry.host for entry in segments}))
    return rows


def _with_inferred_groups(
    rows: Collectives, segments: Sequence[SegmentEntry], labels: list[dict[str, Any]], code: Ints
) -> Collectives:
    """The entries with the groups that the times tell, where the trace names none and the header lists several."""
    listed = _listed_groups(segments)
    worker = [
        row["group_name"] is None
        and row["place"] == "host"
        and row["kind"] not in POINT_TO_POINT
        and len(listed.get((row["of_rank"], row["of_segment"]), [])) > 1
        and (row["tid"] or "").isdigit()
        for row in labels
    ]
    if not any(worker):
        return rows
    from rankscope.timeline.collectives.inferred import Process, infer_groups

    entries = np.flatnonzero(np.array(worker)[code])
    thread = np.array([int(row["tid"]) if of else NONE for row, of in zip(labels, worker, strict=True)])[code]
    session = _of_file(rows, recording_sessions(segments))
    hosts = {entry.rank: entry.host for entry in segments}
    processes = []
    for number, rank in number_rows([session[entries], rows.rank[entries]])[0].tolist():
        mine = entries[(session[entries] == number) & (rows.rank[entries] == rank)]
        groups = tuple(g for g in listed[rank, int(rows.segment[mine[0]])] if g.size is None or g.size > 1)
        processes.append(Process(rank, number, hosts[rank], groups, mine, thread[mine]))
    inferred = infer_groups(rows, processes)
    number_of = {group: number for number, group in enumerate(rows.groups)}
    group = rows.group.copy()
    for process in processes:
        for worker_thread in set(process.thread.tolist()):
            of = inferred.get((process.rank, process.session, worker_thread), unknown_group(process.rank))
            mine = process.rows[process.thread == worker_thread]
            group[mine] = number_of.setdefault(of, len(number_of))
    used = unique_values(group)
    groups_used = tuple(each for each, number in number_of.items() if number in used)
    group = np.searchsorted(used, group)
    sizes = np.array([each.size or 0 for each in groups_used], dtype=np.int64)
    element = np.array([element_bytes(name) for name in rows.dtypes] + [0], dtype=np.int64)[rows.dtype]
    size = _bytes(rows.kind, rows.in_elements, rows.out_elements, element, sizes[group])
    return replace(rows, group=group, groups=groups_used, bytes=size)


def _listed_groups(segments: Sequence[SegmentEntry]) -> dict[tuple[int, int], list[Group]]:
    """By rank and segment the groups of the file's header."""
    return {entry.file: listed_groups(entry) for entry in segments}


def _batches(
    labels: list[dict[str, Any]], roles: Mapping[int, str]
) -> tuple[tuple[tuple[Message, ...], ...], list[int]]:
    """The distinct lists of messages, and the index of each label's list; NONE without any."""
    keys = [(row["members"], row["first_rank"]) for row in labels]
    number = {
        key: index for index, key in enumerate(dict.fromkeys(key for key in keys if key[0] is not None))
    }

    def message(direction: str, peer: int | None, name: str | None, first_rank: int) -> Message:
        group = Group(name or UNKNOWN)
        if roles:
            group = in_role(group, roles[first_rank], first_rank)
        return Message(direction == "send", NONE if peer is None else peer + first_rank, group.name)

    batches = (
        tuple(message(direction, peer, group, first) for direction, peer, group, _ in json.loads(text))
        for text, first in number
    )
    return tuple(batches), [number.get(key, NONE) for key in keys]


_LABELS = (
    "place", "kind", "dtype", "group_name", "group_description", "group_ranks", "group_size", "members",
)  # fmt: skip


def _columns(
    connection: duckdb.DuckDBPyConnection, first_ranks: Sequence[int]
) -> tuple[list[dict[str, Any]], dict[str, Ints]]:
    """The distinct combinations of text columns, and the numeric columns; `label` indexes the former.

    A collective without a group name keeps its rank, segment and track in the label: the group is inferred from
    the thread or stream it runs on. Where several roles have ranks of their own, so does the first rank of the role.
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
    of_role = f"list_max([first FOR first IN {list(first_ranks)} IF first <= c.rank])" if first_ranks else "0"
    cursor.execute(f"""
        CREATE TEMP TABLE collective_labels AS
        SELECT row_number() OVER () - 1 AS label, *
        FROM (SELECT DISTINCT {texts}, {where}, {of_role} AS first_rank FROM collectives c ORDER BY ALL)
    """)
    same = " AND ".join(f"l.{name} IS NOT DISTINCT FROM c.{name}" for name in _LABELS)
    same += "".join(
        f" AND l.of_{name} IS NOT DISTINCT FROM CASE WHEN c.group_name IS NULL THEN c.{name} END"
        for name in ("rank", "segment", "track")
    )
    same += f" AND l.first_rank = {of_role}" if first_ranks else ""
    numbers = ", ".join(f"coalesce(c.{name}, {NONE})::BIGINT AS {name}" for name in optional)
    columns: dict[str, Any] = cursor.execute(f"""
        SELECT l.label, c.rank::BIGINT AS rank, c.segment::BIGINT AS segment, c.id, c.track::BIGINT AS track,
               c.start_ns, c.dur_ns, {numbers}
        FROM collectives c JOIN collective_labels l ON {same}
        ORDER BY c.rank, c.start_ns, c.id
    """).fetchnumpy()
    result = cursor.execute("""
        SELECT l.*, t.tid, t.stream FROM collective_labels l
        LEFT JOIN tracks t ON t.rank = l.of_rank AND t.segment = l.of_segment AND t.track = l.of_track
        ORDER BY l.label
    """)
    names = [column[0] for column in result.description or ()]
    labels = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    cursor.close()
    return labels, columns


def _groups(
    segments: Sequence[SegmentEntry], labels: list[dict[str, Any]], roles: Mapping[int, str]
) -> tuple[list[Group], list[int]]:
    """The process groups, and the index of each label's group."""
    listed = _listed_groups(segments)
    everywhere: dict[int, dict[Group, None]] = {}
    for entry in segments:
        everywhere.setdefault(entry.first_rank, {}).update(dict.fromkeys(header_groups(entry.header)))
    unnamed = _unnamed_groups(labels, listed)
    groups: dict[Group, int] = {}
    places = []
    for number, row in enumerate(labels):
        first = row["first_rank"]
        if row["group_name"] is None:
            group = unnamed[number]
        else:
            told = (row["group_name"], row["group_description"], row["group_ranks"], row["group_size"])
            group = recorded_group(*told, everywhere.get(first, ()))
        if roles and (row["group_name"] is not None or not group.is_named):
            group = in_role(group, roles[first], first)
        places.append(groups.setdefault(group, len(groups)))
    return list(groups), places


def _with_seen_members(groups: Sequence[Group], group: Ints, rank: Ints) -> Iterator[Group]:
    """NCCL's files name communicators without their members: where all have a file, these are the members."""
    pairs = number_rows([group, rank])[0]
    for number, listed in enumerate(groups):
        seen = tuple(pairs[pairs[:, 0] == number, 1].tolist()) if len(pairs) else ()
        whole = listed.ranks is None and listed.is_named and len(seen) == listed.size
        yield replace(listed, ranks=seen) if whole else listed


def _unnamed_groups(
    labels: list[dict[str, Any]], listed: dict[tuple[int, int], list[Group]]
) -> dict[int, Group]:
    """Groups of collectives without metadata, by label: from the header and streams."""
    by_file: dict[tuple[int, int], list[int]] = {}
    for number, row in enumerate(labels):
        if row["group_name"] is None:
            by_file.setdefault((row["of_rank"], row["of_segment"]), []).append(number)
    groups: dict[int, Group] = {}
    for file, numbers in by_file.items():
        of_header = listed.get(file, [])
        streams = sorted({labels[n]["stream"] or 0 for n in numbers if labels[n]["place"] == "device"})
        for n in numbers:
            row = labels[n]
            if len(of_header) == 1:
                groups[n] = of_header[0]
            elif row["place"] == "host":
                groups[n] = Group(UNKNOWN)
            else:  # NCCL uses one stream per process group, numbered in order of creation
                index = streams.index(row["stream"] or 0)
                groups[n] = Group(UNKNOWN if len(streams) == 1 else f"{UNKNOWN}{index}")
    return groups


def _bytes(kind: Ints, sent: Ints, received: Ints, element: Ints, size: Ints) -> Ints:
    """Message size S of nccl-tests: the bytes that are reduced, or the contributions of all ranks (docs/facts.md)."""
    gathers = np.isin(kind, [KINDS.index("all_gather"), KINDS.index("gather")])
    scatters = kind == KINDS.index("scatter")
    receives = (kind == KINDS.index("recv")) | ((kind == KINDS.index(BATCHED)) & (sent == NONE))
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
        keys[entry.file] = of_run[id(entry)], period, entry.job if by_job else ""
    session_of = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
    return {file: session_of[key] for file, key in keys.items()}
