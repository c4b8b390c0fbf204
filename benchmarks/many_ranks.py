"""What `stats` and `stragglers` cost for thousands of ranks, from derived data alone.

    python benchmarks/many_ranks.py [--data 320] [--keep DIR]

A job of 2 tensor-parallel, 16 pipeline and 2 data-parallel ranks is simulated and read: 64 ranks, 6 steps. What the
store keeps of it (results about ranks, clocks, matched collectives) is repeated along the data-parallel axis, with the
process groups of the larger job; 320 data-parallel ranks make 10,240. There are no traces and no tables of these ranks:
an answer that opened them would find nothing.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from measure import measure
from rankscope.analysis.core.rollups import _specs, in_store, rollups_of
from rankscope.analysis.rollups import load_modules
from rankscope.files import make_private_folder
from rankscope.store.arrays import NONE, Ints
from rankscope.store.derived import ANSWERS, path_of
from rankscope.store.index import STORE_NAME, Index, SegmentEntry
from rankscope.store.ingest import Ingested
from rankscope.timeline.clocks import Clocks, save
from rankscope.timeline.collectives.entries import Collectives, Group
from rankscope.timeline.collectives.loading import KEPT
from rankscope.timeline.run import Run
from traces import RANKSCOPE

TENSOR, PIPELINE, DATA = 2, 16, 2
SIZES = {
    "--tensor": TENSOR,
    "--pipeline": PIPELINE,
    "--data": DATA,
    "--events": 500,
    "--layers": 1,
    "--steps": 6,
}


class Repeated:
    """The ranks of a job with `data` data-parallel ranks, as copies of those of a job with DATA."""

    def __init__(self, data: int) -> None:
        self.data, self.copies = data, data // DATA

    def rank(self, rank: Any, copy: Any) -> Any:
        """The rank that has the place of one of the smaller job in a copy of it. Ranks count tensor, data, stages."""
        rest, tensor = rank // TENSOR, rank % TENSOR
        return (rest // DATA * self.data + copy * DATA + rest % DATA) * TENSOR + tensor

    @property
    def originals(self) -> Ints:
        """By rank, that of the smaller job."""
        ranks = np.arange(PIPELINE * DATA * TENSOR)
        originals = np.empty(len(ranks) * self.copies, dtype=np.int64)
        for copy in range(self.copies):
            originals[self.rank(ranks, copy)] = ranks
        return originals


def small_run(folder: Path) -> Run:
    """The job that is repeated."""
    words = [word for pair in SIZES.items() for word in pair]
    faults = ("--fault", "throttle:node3:3", "--offset", 1, "--no-balance")
    measure([*RANKSCOPE, "bench", "cluster", *words, *faults, "-o", folder])
    measure([*RANKSCOPE, "stats", folder, "-q"])
    store = folder / STORE_NAME
    return Run(Ingested(store, Index.load(store), (), ()))


def write_store(run: Run, store: Path, repeated: Repeated) -> None:
    """The derived data of the larger job."""
    make_private_folder(store)
    entries = {entry.rank: entry for entry in run.timelines}
    originals = repeated.originals.tolist()
    Index([_entry(entries[of], rank, len(originals)) for rank, of in enumerate(originals)]).save(store)
    large = Run(Ingested(store, Index.load(store), (), ()))
    clocks = [replace(run.clocks.of(of), rank=rank) for rank, of in enumerate(originals)]
    save(Clocks(tuple(clocks)), store, large.timelines)
    load_modules()
    records = {name: in_store(run, name) for name in _specs}
    rollups_of(large).add(
        [{n: {r: rows[of] for r, of in enumerate(originals)} for n, rows in records.items()}]
    )
    shifts = large.axis.shifts
    key = [[e.rank, e.segment, e.build, shifts[e.rank, e.segment]] for e in large.timelines]
    KEPT.save(store, key, collectives(run.collectives, repeated))


def _entry(entry: SegmentEntry, rank: int, ranks: int) -> SegmentEntry:
    info = {"backend": "nccl", "rank": rank, "world_size": ranks}
    source = {**entry.manifest["source"], "path": f"/simulated/rank-{rank:05d}.json"}
    header = {**entry.header, "distributedInfo": info}
    manifest = {**entry.manifest, "source": source, "header": header, "files": {}}
    return SegmentEntry(rank, entry.segment, entry.rank_source, manifest, f"simulated-{rank}")


def collectives(rows: Collectives, repeated: Repeated) -> Collectives:
    """Groups over data-parallel ranks become larger, all others are copied; so are their matches."""
    count, copies = len(rows.rank), repeated.copies
    joined = np.array([_spans_data(group) for group in rows.groups])[rows.group]
    copy = np.repeat(np.arange(copies), count)
    entry = np.tile(np.arange(count), copies)
    number = np.where(joined[entry], 0, copy)
    rank = repeated.rank(rows.rank[entry], copy)
    order = np.lexsort((rows.start[entry], rank))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    groups, group = _groups(rows, repeated, number[order], entry[order])
    columns: dict[str, Any] = {
        name: getattr(rows, name)[entry[order]]
        for name in (
            "segment", "slice", "track", "kind", "dtype", "bytes", "seq", "step", "start", "end", "on_device", "call",
            "call_start", "in_elements", "out_elements", "batch",
        )
    }  # fmt: skip
    match = rows.match[entry] * copies + number
    _, match = np.unique(np.where(rows.match[entry] == NONE, NONE, match)[order], return_inverse=True)
    without = (rows.match == NONE).any()
    peer = rows.peer[entry[order]]
    steps = count * np.repeat(np.arange(copies), len(rows.sends))
    return Collectives(
        **columns,
        rank=rank[order],
        group=group,
        peer=np.where(peer == NONE, NONE, repeated.rank(peer, copy[order])),
        match=match.reshape(-1) - bool(without),
        sends=place[np.tile(rows.sends, copies) + steps],
        recvs=place[np.tile(rows.recvs, copies) + steps],
        groups=groups,
        dtypes=rows.dtypes,
        batches=rows.batches,
    )


def _spans_data(group: Group) -> bool:
    return len({rank // TENSOR % DATA for rank in group.ranks or ()}) > 1


def _groups(
    rows: Collectives, repeated: Repeated, number: Ints, entry: Ints
) -> tuple[tuple[Group, ...], Ints]:
    """The groups, and the index of each entry's group."""
    listed: list[Group] = []
    first = []
    for group in rows.groups:
        first.append(len(listed))
        every = [[repeated.rank(rank, copy) for rank in group.ranks or ()] for copy in range(repeated.copies)]
        if _spans_data(group):
            every = [sorted(rank for ranks in every for rank in ranks)]
        listed += [
            replace(group, name=f"{group.name}-{at}", ranks=tuple(of), size=len(of))
            for at, of in enumerate(every)
        ]
    return tuple(listed), np.array(first)[rows.group[entry]] + number


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=int, default=320, help="data-parallel ranks, an even number")
    parser.add_argument("--keep", type=Path, help="write the store here and leave it")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="rankscope-many-ranks-"))
    store = folder / f"data-{args.data}"
    try:
        if not store.exists():
            shutil.rmtree(folder / "small", ignore_errors=True)
            write_store(small_run(folder / "small"), store, Repeated(args.data))
        print(f"{TENSOR * PIPELINE * args.data:,} ranks{'CPU s':>22}{'s':>8}{'peak MB':>9}")
        for words in ((), ("-r", "stragglers")):
            path_of(store, ANSWERS).unlink(missing_ok=True)
            for again in ("", " again"):
                cost = measure([*RANKSCOPE, "stats", store, *words])
                name = " ".join(["stats", *words]) + again
                print(f"{name:<26}{cost.cpu_seconds:>8.2f}{cost.seconds:>8.1f}{cost.peak_bytes / 1e6:>9.0f}")
    finally:
        if args.keep is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
