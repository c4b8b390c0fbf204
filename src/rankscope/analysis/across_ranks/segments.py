"""Compute segments: what a rank computes between two communications, by step, micro-batch, phase and position.

The compute kernels of a rank are cut, in launch order, where communication is launched between them; so ranks that run
the same program have the same segments, however long each rank waits. A cut is also made where the backward pass of
autograd begins or ends, and at the steps. The duration of a segment is the union of its compute. On a rank without a
GPU the compute is that of its host, cut where communication is called.

The micro-batch and the phase of a segment come from the messages between pipeline stages and from autograd
(docs/definitions.md, "Balance"). Segments between two messages that have the same phase belong together: a block, one
pass of a micro-batch through a stage. The position of a segment counts within its block.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.layout import Layout, layout_of
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.device_events import (
    COMM,
    COMPUTE,
    UNKNOWN,
    DeviceEvents,
    device_events,
    gpu_ranks,
)
from rankscope.analysis.core.grouping import joined, split_by_rank
from rankscope.analysis.core.intervals import Axis, Intervals, Ints, join, shifted, subtract, union
from rankscope.analysis.core.rank_activity import rank_activity
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import NO_STEP, Scope, all_steps, in_order_of_start
from rankscope.analysis.within_rank import phases
from rankscope.collective_kinds import KINDS
from rankscope.records import dataclass
from rankscope.sql import sql_text
from rankscope.store.arrays import NONE, Mask, count_before, number_rows, starts_group, unique_values
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

PHASES = ("forward", "backward", "other")
FORWARD, BACKWARD, OTHER = range(len(PHASES))
_NO_INTS = np.empty(0, dtype=np.int64)
_SEND, _RECV = KINDS.index("send"), KINDS.index("recv")
_POINT_TO_POINT = ("send", "recv", "sendrecv")
_OF_AUTOGRAD = {phases.BACKWARD: BACKWARD, phases.RECOMPUTE: BACKWARD, phases.FORWARD: FORWARD}


@dataclass(frozen=True)
class RankSegments:
    """The segments of a rank in launch order, and when it was busy. Times count from run.origin_ns(rank)."""

    step: Ints
    cut: Ints
    """How many communications were launched before it."""
    launched: Ints
    """When its first kernel was launched; of a kernel without a launch in the file, its start."""
    start: Ints
    end: Ints
    duration_ns: Ints
    autograd: Ints
    """FORWARD, BACKWARD or OTHER by autograd, or NONE where the file does not tell."""
    compute: Intervals
    """When it computes."""
    other: Intervals
    """When it does not compute, but copies or takes part in a collective other than send and recv."""


_Parts = tuple[dict[str, Ints], Intervals, Intervals]
"""The segments of a rank, when it computes, and when it is busy with anything but send and recv."""


@kept_per_rank("segments", RankSegments, any_window=True)
def rank_segments(run: Run, scope: Scope) -> dict[int, RankSegments]:
    """Of the ranks that compute. Of a rank without GPU events, the compute is that of its host."""
    ranks = scope.ranks_in(run)
    between = ", ".join(map(sql_text, _POINT_TO_POINT))
    rows = run.arrays(
        "SELECT rank::BIGINT AS rank, start_ns AS start, start_ns + dur_ns AS end, "
        f"coalesce(call_ns, start_ns) AS called, kind IN ({between}) AS p2p, place = 'device' AS on_device "
        f"FROM collectives WHERE kind IS NOT NULL AND place IS NOT NULL AND {scope.where()}"
    )
    collectives = split_by_rank(rows, ranks)
    records = {}
    for rank in ranks:
        on_device, origin = rank in gpu_ranks(run), run.origin_ns(rank)
        columns, compute, rest = (_on_device if on_device else _on_host)(run, rank, collectives[rank])
        if not on_device and not len(compute.start):
            continue
        for name in ("launched", "start", "end"):
            columns[name] = columns[name] - origin
        records[rank] = RankSegments(
            **columns, compute=shifted(compute, -origin), other=shifted(subtract(rest, compute), -origin)
        )
    return records


def _on_device(run: Run, rank: int, comm: dict[str, Any]) -> _Parts:
    events = device_events(run, rank, Scope())
    launched = events.launch_start != UNKNOWN
    # The phase at the launch on the host.
    phase = np.where(launched, _phases_at(run, rank, events.launch_start), NONE)
    threads = _backward_threads(run).get(rank, _NO_INTS)
    phase[np.isin(_thread(events.segment, events.launch_track), threads) & launched] = BACKWARD
    p2p = union(comm["start"][comm["p2p"]], comm["end"][comm["p2p"]])
    computing, of_others = events.kind == COMPUTE, events.kind != COMM
    compute = union(events.start[computing], events.end[computing])
    rest = join(
        union(events.start[of_others], events.end[of_others]),
        subtract(union(events.start, events.end), p2p),
    )
    autograd = _before_last_backward(phase, events.launch_start, events.step)
    return cut(events, comm["start"][~comm["on_device"]], autograd), compute, rest


def _on_host(run: Run, rank: int, comm: dict[str, Any]) -> _Parts:
    """Each time in which the host computes without a pause counts as a kernel that was launched when it began."""
    compute = rank_activity(run, rank).compute
    steps, time = split_by_rank(in_order_of_start(all_steps(run)), [rank])[rank], compute.start
    at = np.searchsorted(steps["start"], time, side="right") - 1
    inside = (at >= 0) & (time < np.append(steps["stop"], 0)[at])
    step, file = (np.where(inside, np.append(steps[name], 0)[at], NO_STEP) for name in ("step", "segment"))
    phase = _before_last_backward(_phases_at(run, rank, time), time, step)
    rest = union(comm["start"][~comm["p2p"]], comm["end"][~comm["p2p"]])
    return _cut(time, comm["called"], compute, step, file, phase), compute, rest


def _phases_at(run: Run, rank: int, time: Ints) -> Ints:
    of_host = np.full(len(phases.PHASES), OTHER)
    of_host[list(_OF_AUTOGRAD)] = list(_OF_AUTOGRAD.values())
    phase: Ints = of_host[phases.partition_of(run, rank, Scope()).at(time)]
    return phase


def _before_last_backward(phase: Ints, time: Ints, step: Ints) -> Ints:
    """What follows the last backward pass of a step is no forward pass."""
    backward = phase == BACKWARD
    if not backward.any():
        return np.full(len(phase), NONE)
    steps, number = np.unique(step, return_inverse=True)
    last = np.full(len(steps), np.iinfo(np.int64).min)
    np.maximum.at(last, number[backward], time[backward])
    late = (phase == FORWARD) & (time > last[number])
    return np.where(late, OTHER, phase)


@once_per_run
def _backward_threads(run: Run) -> dict[int, Ints]:
    """By rank, the threads that autograd runs backward passes on: they have its name."""
    rows = run.arrays(
        "SELECT rank::BIGINT AS rank, segment::BIGINT AS segment, track::BIGINT AS track FROM tracks "
        "WHERE contains(thread, 'pt_autograd')"
    )
    by_rank = split_by_rank(rows, run.ranks)
    return {rank: _thread(threads["segment"], threads["track"]) for rank, threads in by_rank.items()}


def _thread(segment: Ints, track: Ints) -> Ints:
    return (segment << 32) | (track + 1)


def launch_order(launch_start: Ints, start: Ints) -> Ints:
    """The time by which events are ordered: their launch, or their start where it is not in the file."""
    return np.where(launch_start != UNKNOWN, launch_start, start)


def cut(events: DeviceEvents, on_host: Ints, autograd: Ints) -> dict[str, Ints]:
    """The segments of a rank's events; `on_host`: when its collectives on the host begin."""
    time = launch_order(events.launch_start, events.start)
    comm = np.concatenate([time[events.kind == COMM], on_host])
    mine = np.flatnonzero(events.kind == COMPUTE)
    mine = mine[np.lexsort((events.start[mine], time[mine]))]
    ran = Intervals(events.start[mine], events.end[mine])
    return _cut(time[mine], comm, ran, events.step[mine], events.segment[mine], autograd[mine])


def _cut(time: Ints, comm: Ints, ran: Intervals, step: Ints, file: Ints, phase: Ints) -> dict[str, Ints]:
    """The segments of work that ran at `ran`, in order of the times at which it was launched; `comm`: those of
    communication."""
    keys = [np.searchsorted(np.sort(comm), time), step, file, phase]
    first = np.flatnonzero(starts_group(keys)) if len(time) else time
    number = np.repeat(np.arange(len(first)), np.diff(first, append=len(time)))
    axis = Axis.over(ran.start, ran.end, max(len(first), 1))
    lengths = axis.lengths(union(axis.place(ran.start, number), axis.place(ran.end, number)))
    return {
        "step": step[first],
        "cut": keys[0][first],
        "launched": time[first],
        "start": np.minimum.reduceat(ran.start, first) if len(first) else first,
        "end": np.maximum.reduceat(ran.end, first) if len(first) else first,
        "duration_ns": lengths[: len(first)],
        "autograd": phase[first],
    }


@dataclass(frozen=True)
class Segments:
    """The segments of all ranks in scope, by rank and launch; one entry a segment."""

    rank: Ints
    step: Ints
    stage: Ints
    chunk: Ints
    """The virtual stage of its rank, where stages are interleaved; else 0."""
    micro_batch: Ints
    """Its number within the step; NONE where it belongs to none."""
    phase: Ints
    """Index into PHASES."""
    position: Ints
    """How many communications were launched between the first segment of that micro-batch and phase and this one."""
    duration_ns: Ints
    start: Ints
    end: Ints
    launched: Ints

    def pick(self, mask: Mask) -> Segments:
        return Segments(*(getattr(self, f.name)[mask] for f in fields(self)))


def tells_phases(stage: Ints, step: Ints, micro_batch: Ints, phase: Ints) -> bool:
    """Whether all stages have as many forward and backward passes: without autograd, a stage that turns round runs both
    in one."""
    passes, _ = number_rows([stage, step, micro_batch, phase])
    counts = np.zeros((int(stage.max(initial=0)) + 1, len(PHASES)), dtype=np.int64)
    np.add.at(counts, (passes[:, 0], passes[:, 3]), 1)
    counts = counts[counts.any(axis=1)]
    return bool((counts == counts[:1]).all())


@once_per_run
def segments(run: Run, scope: Scope) -> Segments:
    """Of the ranks and steps in scope; without steps, all that was recorded is one step."""
    every = _all_segments(run, Scope(ranks=scope.ranks))
    if scope.steps is not None:
        return every.pick(scope.mask(every.step))
    in_steps = every.step != NO_STEP
    return every.pick(in_steps) if in_steps.any() else every


@once_per_run
def _all_segments(run: Run, scope: Scope) -> Segments:
    """The ranks lie one after the other in all arrays."""
    layout, records = layout_of(run, Scope()), rank_segments(run, scope)
    ranks = np.array([*records], dtype=np.int64)
    parts = [*records.values()]
    columns = {name: joined(parts, name) for name in ("step", "cut", "duration_ns", "autograd")}
    number = np.repeat(np.arange(len(ranks)), [len(part.step) for part in parts])
    origins = np.array([run.origin_ns(rank) for rank in ranks.tolist()], dtype=np.int64)
    columns |= {name: joined(parts, name) + origins[number] for name in ("launched", "start", "end")}
    messages = _messages(waits(run).rows, layout, ranks)
    blocks = _blocks(number, columns, messages, len(ranks))
    stage_of = np.array([layout.stage(rank) for rank in ranks.tolist()], dtype=np.int64)
    chunks = _chunks(number, columns["step"], blocks, stage_of == 0)
    return Segments(
        rank=ranks[number] if len(ranks) else number,
        stage=stage_of[number] if len(ranks) else number,
        **_numbered(number, columns, blocks, layout.sizes.get("pp", 1), chunks),
        **{name: columns[name] for name in ("step", "duration_ns", "start", "end", "launched")},
    )


@dataclass(frozen=True)
class _Messages:
    """What ranks send to other stages and receive from them."""

    rank: Ints
    """Its number among the ranks."""
    launched: Ints
    """When it was launched on the host; NONE where that is not known."""
    start: Ints
    """Of its kernel."""
    is_recv: Mask
    forward: Mask
    """The message goes from a stage to the next one."""


def _messages(rows: Collectives, layout: Layout, ranks: Ints) -> _Messages:
    """Of these ranks, where there are stages."""
    stages = layout.sizes.get("pp", 1)
    if stages < 2 or not len(rows.rank) or not len(ranks):
        nothing = _NO_INTS.astype(bool)
        return _Messages(_NO_INTS, _NO_INTS, _NO_INTS, nothing, nothing)
    alone = np.flatnonzero(np.isin(rows.kind, (_SEND, _RECV)) & (rows.batch == NONE))
    batched = np.flatnonzero(rows.batch != NONE).tolist()
    # For each message that an entry sends or receives: the entry, whether it receives, and the other rank.
    sides = [(at, not each.is_send, each.peer) for at in batched for each in rows.batches[rows.batch[at]]]
    of_batches = np.array(sides, dtype=np.int64).reshape(-1, 3)
    of_others = np.stack([alone, rows.kind[alone] == _RECV, rows.peer[alone]], axis=1)
    every = np.concatenate([of_others, of_batches])
    entry, is_recv, peer = every[every[:, 2] != NONE].T
    highest = int(max(rows.rank.max(), peer.max(initial=0), max(layout.places, default=0))) + 1
    stage_of = np.array([layout.stage(rank) for rank in range(highest)])
    rank = rows.rank[entry]
    distance = (stage_of[peer] - stage_of[rank]) % stages
    # With two stages the next one is also the one before.
    to_next = (distance == 1) if stages > 2 else stage_of[peer] > stage_of[rank]
    to_previous = (distance == stages - 1) if stages > 2 else stage_of[peer] < stage_of[rank]
    number = np.minimum(np.searchsorted(ranks, rank), len(ranks) - 1)
    used = (to_next | to_previous) & (ranks[number] == rank)
    return _Messages(
        rank=number[used],
        launched=rows.call_start[entry[used]],
        start=rows.start[entry[used]],
        is_recv=is_recv[used] > 0,
        forward=(is_recv > 0)[used] ^ to_next[used],
    )


@dataclass(frozen=True)
class _Blocks:
    """The segments of all ranks, grouped into passes of a micro-batch through a stage."""

    phase: Ints
    """By segment."""
    first: Ints
    """By block: its first segment."""
    anchor: Ints
    """By block: the segment from which positions count."""
    received: Ints
    """By rank: messages that were received in steps."""

    @property
    def block(self) -> Ints:
        """By segment."""
        return np.repeat(np.arange(len(self.first)), np.diff(self.first, append=len(self.phase)))


def _blocks(rank: Ints, columns: dict[str, Ints], messages: _Messages, ranks: int) -> _Blocks:
    step, autograd = columns["step"], columns["autograd"]
    count = len(step)
    if not count:
        return _Blocks(autograd, _NO_INTS, _NO_INTS, np.zeros(ranks, dtype=np.int64))
    at = _following(rank, columns, messages)
    # A rank has a place for each of its segments, and one behind them.
    sides = np.zeros((2, 2, count + ranks), dtype=bool)
    sides[messages.is_recv.astype(int), messages.forward.astype(int), at + messages.rank] = True
    has_message = sides[:, :, np.arange(count) + rank].any(axis=(0, 1))
    between = np.flatnonzero(starts_group([rank, step]) | has_message)
    # [backward or forward, group]: whether a message was received just before a group of segments, or is sent just
    # after it.
    behind, of_group = np.append(between[1:], count), rank[between]
    got, sent = sides[1][:, between + of_group], sides[0][:, behind + of_group]
    # What a stage has received says its phase; where it has received nothing, what it sends afterwards. A stage that
    # sends back what it received last has run forward and backward: that counts as backward.
    (recv_back, recv_on), (sent_back, sent_on) = got, sent
    conditions = [recv_back | (recv_on & sent_back), recv_on | sent_on, sent_back]
    told = np.select(conditions, [BACKWARD, FORWARD, BACKWARD], OTHER)
    phase = np.where(autograd == NONE, np.repeat(told, np.diff(between, append=count)), autograd)
    first = np.flatnonzero(starts_group([rank, step, np.cumsum(has_message), phase]))
    last = np.searchsorted(rank, np.arange(ranks), side="right")
    inside = messages.is_recv & (at < last[messages.rank])
    inside[inside] = step[at[inside]] != NO_STEP
    received = np.bincount(messages.rank[inside], minlength=ranks)
    of_block, number = phase[first], np.arange(len(first))
    # Work between two messages that takes part in no pass (an extra kernel) counts to the pass that follows.
    group, side = np.searchsorted(between, first, side="right") - 1, np.where(of_block == FORWARD, 1, 0)
    is_pass = (received[rank[first]] == 0) | (of_block == OTHER) | got[side, group] | sent[side, group]
    following = np.minimum.accumulate(np.where(is_pass, number, len(first))[::-1])[::-1]
    target = np.minimum(following, len(first) - 1)
    alike = (rank[first[target]] == rank[first]) & (step[first[target]] == step[first])
    target = np.where((following < len(first)) & alike, target, number)
    of_block = np.where(is_pass[target], of_block[target], OTHER)
    begins = starts_group([target])
    sizes = np.diff(first, append=count)
    return _Blocks(np.repeat(of_block, sizes), first[begins], first[target[begins]], received)


def _following(rank: Ints, columns: dict[str, Ints], messages: _Messages) -> Ints:
    """By message: the first segment of its rank that was launched after it, or one past the last of that rank. Where
    its launch is not known, the kernels tell."""
    is_known = messages.launched != NONE
    times = [columns["launched"], columns["start"], messages.launched[is_known], messages.start]
    axis = Axis.over(np.concatenate(times), np.concatenate(times), int(rank[-1]) + 1)
    at = np.searchsorted(axis.place(columns["launched"], rank), axis.place(messages.launched, messages.rank))
    starts = np.maximum.accumulate(axis.place(columns["start"], rank))
    at[~is_known] = np.searchsorted(starts, axis.place(messages.start, messages.rank)[~is_known])
    return at


def _chunks(rank: Ints, step: Ints, blocks: _Blocks, is_first_stage: Mask) -> int:
    """How many virtual stages a rank has: with v of them and m micro-batches, the first stage runs m * v forward passes
    and receives m * (2 * v - 1) messages."""
    first = blocks.first
    is_pass = (step[first] != NO_STEP) & (blocks.phase[first] == FORWARD)
    passes = np.bincount(rank[first[is_pass]], minlength=len(is_first_stage))
    micro_batches = 2 * passes - blocks.received
    divided = np.maximum(micro_batches, 1)
    chunks = np.where((micro_batches > 0) & (passes % divided == 0), passes // divided, 1)
    of_ranks = unique_values(chunks[is_first_stage])
    return int(of_ranks[0]) if len(of_ranks) == 1 else 1


def _numbered(
    rank: Ints, columns: dict[str, Ints], blocks: _Blocks, stages: int, chunks: int
) -> dict[str, Ints]:
    first, block = blocks.first, blocks.block
    of_rank, step, phase = rank[first], columns["step"][first], blocks.phase[first]
    order = count_before([of_rank, step, phase], first) if len(first) else first
    chunk = np.zeros(len(first), dtype=np.int64)
    micro_batch = np.where(phase == OTHER, NONE, order)
    position = columns["cut"] - columns["cut"][blocks.anchor[block]]
    # Work in no micro-batch is compared by its order in the step.
    alone = np.flatnonzero(micro_batch[block] == NONE)
    if len(alone):
        position[alone] = count_before([rank[alone], columns["step"][alone]], alone)
    if chunks > 1:
        _, alike = number_rows([of_rank, step, phase])
        of_chunk, of_batch = _interleaved(order, np.bincount(alike)[alike], stages, chunks)
        micro_batch = np.where(phase == OTHER, NONE, of_batch)
        chunk = np.select([phase == FORWARD, phase == BACKWARD], [of_chunk, chunks - 1 - of_chunk], 0)
    return {
        "chunk": chunk[block],
        "micro_batch": micro_batch[block],
        "phase": blocks.phase,
        "position": position,
    }


def _interleaved(order: Ints, passes: Ints, stages: int, chunks: int) -> tuple[Ints, Ints]:
    """Chunk and micro-batch of the n-th of so many passes of a rank, in the order that Megatron and torch use: as many
    micro-batches as there are stages go through the first chunk, then through the next."""
    micro_batches = passes // chunks
    round_ = order // (stages * chunks)
    size = np.minimum(stages, np.maximum(micro_batches - round_ * stages, 1))
    within = order - round_ * stages * chunks
    return np.minimum(within // size, chunks - 1), round_ * stages + within % size
