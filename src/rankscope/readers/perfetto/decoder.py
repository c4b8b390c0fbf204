"""Packets of a Perfetto trace, decoded in Python; native/perfetto.c does the same, and faster.

A trace is decoded twice, block by block. `Index` finds the tracks, where slices begin and end, and flows. What follows
from all of them (`Plan`) is given to `Rewriter`, which writes the events as Kineto's JSON.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rankscope.readers.perfetto.wire import (
    WireError,
    bytes_in,
    double_in,
    fields,
    number_in,
    read_varint,
    signed,
)

DAMAGED, NO_STATE, NO_TIME, NO_CLOCK, FAR_TIME, NO_KIND, NO_TRACK, NO_ARGS, NO_NAME, SHORTENED = range(10)
LOSSES = {
    DAMAGED: "packets that are damaged",
    NO_STATE: "packets that refer to names which the file has lost",
    NO_TIME: "events without a time",
    NO_CLOCK: "events of a clock that no snapshot describes",
    FAR_TIME: "events at a time beyond 2116",
    NO_KIND: "events that neither begin, end, mark nor count anything",
    NO_TRACK: "events on tracks beyond the first million",
}
"""Why events are lost, by their number."""
REPAIRS = {
    NO_ARGS: "arguments that are damaged were left out",
    NO_NAME: "names that are not in the file are empty",
    SHORTENED: "long names were cut to 64 KiB",
}
COUNTED = SHORTENED + 1

BEGIN, END, END_AT_ONCE = 0, 1, 2
"""Halves of slices. END_AT_ONCE follows in the file on a begin of the same time: the slice has no duration."""

# Field numbers of perfetto/trace/*.proto, by message.
PACKET = 1
FTRACE, CLOCKS, TIME, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS = 1, 6, 8, 10, 11, 12, 13
CLEARED_OLD, DROPPED, COMPRESSED, STAGE, CLOCK, DEFAULTS, DESCRIPTOR = 41, 42, 50, 53, 58, 59, 60
ATTRIBUTES, ZSTD_COMPRESSED = 126, 133
_READ = frozenset((CLOCKS, TIME, SEQUENCE, TRACK_EVENT, FLAGS, CLEARED_OLD, DROPPED, STAGE, CLOCK, DEFAULTS))
"""Fields of a packet that both passes read."""
_NOT_DATA = frozenset((3, INTERNED, 36, 79, 87, 88, 98))
"""Fields of no use here. Others are data of other kinds, which are counted."""
MOST_NUMBERS = 1024
"""Field numbers that are counted; extensions beyond are counted as this."""

CATEGORIES, NAMES, ARG_NAMES, STRINGS, SPECS, KERNELS = 1, 2, 3, 29, 24, 1000
_TABLES = frozenset((CATEGORIES, NAMES, ARG_NAMES, STRINGS, KERNELS))
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_BOOTTIME, _REALTIME = 6, 1
_LONGEST_INTERNED = 1 << 16
"""One text may be used by every event: longer ones would make a small file expand without limit."""
_FARTHEST_NS = 1 << 62
_MOST_NESTED = 32
_ENOUGH_JSON = 32 << 20
"""In one piece."""
_MOST_SEQUENCES = 1 << 18
_MOST_TRACKS = 1 << 20
"""Each takes some hundred bytes: a small file must not need much memory."""
_SPECIAL = re.compile(rb'[\x00-\x1f"\\]')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]{0,17})")
_LANE = re.compile(rb"(?:\[[0-9]+\] )?(?:stream ([0-9]{1,18})\Z)?")
_CATEGORY_OF_STAGE = {
    b"Kernel": b"kernel",
    b"Memcpy": b"gpu_memcpy",
    b"Memset": b"gpu_memset",
    b"Annotation": b"gpu_user_annotation",
}
"""Stages as torch names them."""
_COMPUTE = 2
_LEGACY_ASYNC = {83: b"b", 98: b"b", 70: b"e", 101: b"e", 84: b"n", 112: b"n", 110: b"n"}
_LEGACY_FLOW = {115: b"s", 116: b"t", 102: b"f"}
_LEGACY_INSTANT = (73, 105, 82)


def escaped(text: bytes) -> bytes:
    """The inside of a JSON string. A zero byte, which no text needs, becomes a replacement character."""
    return _SPECIAL.sub(_escape, text)


def _escape(match: re.Match[bytes]) -> bytes:
    byte = match[0]
    if byte in b'"\\':
        return b"\\" + byte
    return b"\\u%04x" % (byte[0] or 0xFFFD)


@dataclass(slots=True)
class _Clock:
    offset: int
    """Of trace time, in ns."""
    unit: int
    incremental: bool
    last: int


@dataclass(slots=True)
class _Sequence:
    """What the packets of one writer refer to."""

    valid: bool = False
    """Its state was cleared, and nothing has been lost since."""
    clock: int | None = None
    track: int = 0
    counters: tuple[int, ...] = ()
    double_counters: tuple[int, ...] = ()
    interned: dict[tuple[int, int], bytes] = field(default_factory=dict)
    lanes: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    """GPU specifications: tid and category."""


@dataclass(slots=True)
class _Event:
    """A track event; texts are found in it when they are needed."""

    kind: bytes = b""
    """B, E, i, C; X, b, e, n, s, t, f of legacy events."""
    track: int = 0
    name: bytes | None = None
    name_iid: int = 0
    categories: list[bytes | int] = field(default_factory=list)
    flows: list[tuple[int, int]] = field(default_factory=list)
    """Ids, and whether they end here."""
    value: float | int = 0
    counted: list[tuple[int, float | int]] = field(default_factory=list)
    """Values of other counters."""
    annotations: list[bytes] = field(default_factory=list)
    duration: int = 0
    id: int = 0


@dataclass
class Plan:
    """What the second pass needs of the first."""

    base_ns: int
    """Time 0 of the events."""
    tracks: list[bytes]
    """By number: pid and tid as JSON."""
    counters: list[tuple[bytes, bytes, int, bool] | None]
    """By number: name, series, multiplier, and whether values are differences."""
    durations: Any
    """Of each begin."""
    flow_phases: Any
    """Of each flow id of an event: the byte s, t or f, or 0."""
    flow_kinds: list[tuple[int, int, bytes]]
    """First and last id, and their category."""


class _Decoder:
    """What both passes share: packets, sequences, clocks."""

    def __init__(self, sequence: int | None = None) -> None:
        self.counts = [0] * COUNTED
        self.unread: Counter[int] = Counter()
        self.real_offset: int | None = None
        """Nanoseconds since 1970 at trace time 0."""
        self._only = sequence
        self._sequences: dict[int, _Sequence] = {}
        self._clocks: dict[tuple[int, int], _Clock] = {}
        self._trace_clock = 0

    def add(self, block: bytes) -> None:
        for packet in packets(block):
            self._packet(packet)

    def _packet(self, packet: bytes) -> None:
        values: dict[int, tuple[int, Any]] = {}
        interned: list[bytes] = []
        rest: list[tuple[int, bytes]] = []
        try:
            for number, wire, value in fields(packet):
                values[number] = wire, value
                if number == SEQUENCE and not self._is_wanted(number_in(wire, value) & 0xFFFF_FFFF):
                    return
                if number == INTERNED:
                    interned.append(bytes_in(wire, value))
                elif number not in _READ:
                    rest.append((number, bytes_in(wire, value)))
        except WireError:
            self.counts[DAMAGED] += 1
            return

        def number_of(number: int) -> int:
            return number_in(*values[number]) if number in values else 0

        place = number_of(SEQUENCE) & 0xFFFF_FFFF
        if place not in self._sequences and len(self._sequences) == _MOST_SEQUENCES:
            self.counts[DAMAGED] += 1
            return
        sequence = self._sequences.setdefault(place, _Sequence())
        flags = number_of(FLAGS)
        if flags & _STATE_CLEARED or number_of(CLEARED_OLD):
            sequence = self._sequences[place] = _Sequence(valid=True)
        elif number_of(DROPPED):
            sequence.valid = False
        try:
            if DEFAULTS in values:
                self._set_defaults(sequence, bytes_in(*values[DEFAULTS]))
            if CLOCKS in values:
                self._set_clocks(place, bytes_in(*values[CLOCKS]))
        except WireError:
            self.counts[DAMAGED] += 1
            return
        for data in interned:
            self._intern(sequence, data)
        for number, data in rest:
            self._note(number, data)
        is_event = TRACK_EVENT in values or STAGE in values
        if flags & _NEEDS_STATE and not sequence.valid:
            self.counts[NO_STATE] += is_event
            return
        time = self._time(place, sequence, number_of(CLOCK) & 0xFFFF_FFFF, values) if TIME in values else None
        if not is_event:
            return
        if TIME not in values:
            self.counts[NO_TIME] += 1
        elif time is None:
            self.counts[NO_CLOCK] += 1
        elif not -_FARTHEST_NS < time < _FARTHEST_NS:
            self.counts[FAR_TIME] += 1
        elif TRACK_EVENT in values:
            self._track_event(sequence, time, bytes_in(*values[TRACK_EVENT]))
        else:
            self._stage(sequence, time, bytes_in(*values[STAGE]))

    def _is_wanted(self, sequence: int) -> bool:
        return self._only is None or sequence in (self._only, 0)

    def _note(self, number: int, data: bytes) -> None:
        """Look at another field of a packet; the index does."""

    def _intern(self, sequence: _Sequence, data: bytes) -> None:
        """Remember texts; the rewriter does."""

    def _slice_event(self, sequence: _Sequence, time: int, event: _Event) -> None:
        raise NotImplementedError

    def _stage(self, sequence: _Sequence, time: int, data: bytes) -> None:
        raise NotImplementedError

    def _set_defaults(self, sequence: _Sequence, data: bytes) -> None:
        sequence.clock, sequence.track, counters, doubles = None, 0, [], []
        for number, wire, value in fields(data):
            if number == CLOCK:
                sequence.clock = number_in(wire, value) & 0xFFFF_FFFF
            elif number == TRACK_EVENT:
                for inner, kind, item in fields(bytes_in(wire, value)):
                    if inner == 11:
                        sequence.track = number_in(kind, item)
                    elif inner == 31:
                        counters.append(number_in(kind, item))
                    elif inner == 45:
                        doubles.append(number_in(kind, item))
        sequence.counters, sequence.double_counters = tuple(counters), tuple(doubles)

    def _set_clocks(self, place: int, data: bytes) -> None:
        clocks: list[tuple[tuple[int, int], int, int, bool]] = []
        primary = 0
        for number, wire, value in fields(data):
            if number == 2:
                primary = number_in(wire, value) & 0xFFFF_FFFF
            if number != 1:
                continue
            clock, time, unit, incremental = 0, 0, 1, False
            for inner, kind, item in fields(bytes_in(wire, value)):
                if inner == 1:
                    clock = number_in(kind, item) & 0xFFFF_FFFF
                elif inner == 2:
                    time = number_in(kind, item)
                elif inner == 3:
                    incremental = number_in(kind, item) != 0
                elif inner == 4:
                    unit = number_in(kind, item) or 1
            if time * unit < _FARTHEST_NS:
                clocks.append((self._key(place, clock), time, unit, incremental))
        if not self._trace_clock:
            self._trace_clock = primary or _BOOTTIME
            self._clocks[0, self._trace_clock] = _Clock(0, 1, False, 0)
        base = next((entry for entry in clocks if entry[0] == (0, self._trace_clock)), None)
        base = base or next((entry for entry in clocks if entry[0] in self._clocks), None)
        if base is None:
            if not clocks:
                return
            base = clocks[0]
            self._clocks[base[0]] = _Clock(0, base[2], base[3], base[1])
        at = base[1] * base[2] + self._clocks[base[0]].offset
        if not -_FARTHEST_NS < at < _FARTHEST_NS:
            return
        for key, time, unit, incremental in clocks:
            if key != (0, self._trace_clock):
                self._clocks[key] = _Clock(at - time * unit, unit, incremental, time)
            if key == (0, _REALTIME) and self.real_offset is None:
                self.real_offset = time * unit - at

    @staticmethod
    def _key(place: int, clock: int) -> tuple[int, int]:
        return (place, clock) if 64 <= clock < 128 else (0, clock)

    def _time(
        self, place: int, sequence: _Sequence, clock: int, values: dict[int, tuple[int, Any]]
    ) -> int | None:
        """On the trace's clock; None if it is of a clock that is not known."""
        time = number_in(*values[TIME])
        clock = clock or sequence.clock or 0
        if not clock or clock == (self._trace_clock or _BOOTTIME):
            return time
        known = self._clocks.get(self._key(place, clock))
        if known is None:
            return None
        if known.incremental:
            time = known.last = (known.last + time) & 0xFFFF_FFFF_FFFF_FFFF
        return time * known.unit + known.offset

    def _track_event(self, sequence: _Sequence, time: int, data: bytes) -> None:
        try:
            event = _parse_event(sequence, data)
        except WireError:
            self.counts[DAMAGED] += 1
            return
        if event.kind:
            self._slice_event(sequence, time, event)
        else:
            self.counts[NO_KIND] += 1


def _parse_event(sequence: _Sequence, data: bytes) -> _Event:
    event = _Event(track=sequence.track)
    kind = 0
    legacy = b""
    counters: list[int] = []
    doubles: list[int] = []
    values: list[int] = []
    double_values: list[float] = []
    for number, wire, value in fields(data):
        if number == 9:
            kind = number_in(wire, value)
        elif number == 11:
            event.track = number_in(wire, value)
        elif number == 10:
            event.name_iid = number_in(wire, value)
        elif number == 23:
            event.name = bytes_in(wire, value)
        elif number == 3:
            event.categories.append(number_in(wire, value))
        elif number == 22:
            event.categories.append(bytes_in(wire, value))
        elif number == 4:
            event.annotations.append(bytes_in(wire, value))
        elif number in (47, 36):
            event.flows.append((number_in(wire, value), 0))
        elif number in (48, 42):
            event.flows.append((number_in(wire, value), 1))
        elif number == 30:
            event.value = signed(number_in(wire, value))
        elif number == 44:
            event.value = double_in(wire, value)
        elif number == 31:
            counters.append(number_in(wire, value))
        elif number == 45:
            doubles.append(number_in(wire, value))
        elif number == 12:
            values.append(signed(number_in(wire, value)))
        elif number == 46:
            double_values.append(double_in(wire, value))
        elif number == 6:
            legacy = bytes_in(wire, value)
    event.kind = {1: b"B", 2: b"E", 3: b"i", 4: b"C"}.get(kind, b"")
    if legacy:
        _parse_legacy(event, legacy)
    event.counted += zip(counters or sequence.counters, values, strict=False)
    event.counted += zip(doubles or sequence.double_counters, double_values, strict=False)
    return event


def _parse_legacy(event: _Event, data: bytes) -> None:
    phase = duration = direction = bind = 0
    for number, wire, value in fields(data):
        if number == 1 and not event.name_iid:
            event.name_iid = number_in(wire, value)
        elif number == 2:
            phase = number_in(wire, value)
        elif number == 3:
            duration = min(number_in(wire, value), _FARTHEST_NS // 1000)
        elif number in (6, 10, 11):
            event.id = number_in(wire, value)
        elif number == 8:
            bind = number_in(wire, value)
        elif number == 13:
            direction = number_in(wire, value)
    if not event.kind:
        event.duration = duration * 1000
        if phase in (66, 69, 88):  # B, E, X
            event.kind = bytes((phase,))
        elif phase in _LEGACY_INSTANT:
            event.kind = b"i"
        else:
            event.kind = _LEGACY_ASYNC.get(phase) or _LEGACY_FLOW.get(phase, b"")
        if phase in _LEGACY_FLOW:
            event.id = bind or event.id
    if direction and bind:
        event.flows.append((bind, int(direction == 1)))


class Index(_Decoder):
    """The first pass."""

    def __init__(self, sequence: int | None = None) -> None:
        super().__init__(sequence)
        self.uuids: list[int] = []
        """Of the tracks with events; their place is the track's number."""
        self.tracks, self.times, self.halves = array("i"), array("q"), array("B")
        """Of every begin and end of a slice."""
        self.flow_ids, self.flow_times, self.flow_ends = array("Q"), array("q"), array("B")
        """Of every flow id of an event, and whether it ends there."""
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.described: list[tuple[int, bytes]] = []
        """Field number and content of packets that describe tracks or the trace."""
        self._numbers: dict[int, int] = {}
        self._latest: dict[int, tuple[int, bool]] = {}
        """The time of a track's latest half, and whether an end at the same time ends what begins there."""

    def _note(self, number: int, data: bytes) -> None:
        if number in (DESCRIPTOR, ATTRIBUTES):
            self.described.append((number, data))
        elif number not in _NOT_DATA:
            self.unread[min(number, MOST_NUMBERS)] += 1

    def _number(self, uuid: int) -> int | None:
        """None if there are too many tracks."""
        number = self._numbers.get(uuid)
        if number is None and len(self.uuids) < _MOST_TRACKS:
            number = self._numbers[uuid] = len(self.uuids)
            self.uuids.append(uuid)
        return number

    def _extend(self, begin: int, end: int) -> None:
        self.first_ns = begin if self.first_ns is None else min(self.first_ns, begin)
        self.last_ns = end if self.last_ns is None else max(self.last_ns, end)

    def _slice_event(self, sequence: _Sequence, time: int, event: _Event) -> None:
        track = self._number(event.track)
        if track is None:
            self.counts[NO_TRACK] += 1
            return
        self._extend(time, time + event.duration)
        for uuid, _ in event.counted:
            self._number(uuid)
        if event.kind in (b"B", b"E"):
            latest, at_once = self._latest.get(track, (0, False))
            half = BEGIN if event.kind == b"B" else END_AT_ONCE if at_once and latest == time else END
            self._latest[track] = time, half != END
            self.tracks.append(track)
            self.times.append(time)
            self.halves.append(half)
        if event.kind not in (b"E", b"C"):
            for flow, ends in event.flows:
                self.flow_ids.append(flow)
                self.flow_times.append(time)
                self.flow_ends.append(ends)

    def _stage(self, sequence: _Sequence, time: int, data: bytes) -> None:
        try:
            duration = next((number_in(wire, v) for n, wire, v in list(fields(data)) if n == 2), 0)
        except WireError:
            self.counts[DAMAGED] += 1
            return
        self._extend(time, time + min(duration, _FARTHEST_NS))


class Rewriter(_Decoder):
    """The second pass."""

    def __init__(self, plan: Plan, uuids: list[int], sequence: int | None = None) -> None:
        super().__init__(sequence)
        self._plan = plan
        self._numbers = {uuid: number for number, uuid in enumerate(uuids)}
        self._begins = self._flows = 0
        self._sums: dict[int, float] = {}
        self._out: list[bytes] = []

    def rewrite(self, block: bytes) -> Iterator[bytes]:
        """The events of a block as JSON, with commas between them, in pieces."""
        self._out, size = [], 0
        for packet in packets(block):
            before = len(self._out)
            self._packet(packet)
            size += sum(map(len, self._out[before:]))
            if size > _ENOUGH_JSON:
                yield b",\n".join(self._out)
                self._out, size = [], 0
        if self._out:
            yield b",\n".join(self._out)

    def _intern(self, sequence: _Sequence, data: bytes) -> None:
        try:
            self._intern_all(sequence, data)
        except WireError:
            self.counts[NO_NAME] += 1

    def _intern_all(self, sequence: _Sequence, data: bytes) -> None:
        for table, wire, value in fields(data):
            if table not in _TABLES and table != SPECS:
                continue
            iid, text, demangled, category = 0, b"", b"", 0
            for number, kind, item in fields(bytes_in(wire, value)):
                if number == 1:
                    iid = number_in(kind, item)
                elif number == 2:
                    text = bytes_in(kind, item)
                elif number == 3 and table == KERNELS:
                    demangled = bytes_in(kind, item)
                elif number == 4 and table == SPECS:
                    category = number_in(kind, item)
            text = self._shortened(demangled or text)
            sequence.interned[table, iid] = escaped(text)
            if table == SPECS:
                sequence.lanes[iid] = _lane(text), _stage_category(text, category)

    def _shortened(self, text: bytes) -> bytes:
        if len(text) <= _LONGEST_INTERNED:
            return text
        self.counts[SHORTENED] += 1
        end = _LONGEST_INTERNED
        while end and text[end] & 0xC0 == 0x80:
            end -= 1
        return text[:end]

    def _slice_event(self, sequence: _Sequence, time: int, event: _Event) -> None:
        plan = self._plan
        track = self._numbers.get(event.track)
        if track is None:
            return
        at = _microseconds(time - plan.base_ns)
        if event.kind == b"C":
            self._count(track, at, event.value, self._name(sequence, event))
        elif event.kind != b"E":
            head = b'{"ph":"%b","cat":"%b","name":"%b",%b"ts":%b' % (
                b"X" if event.kind == b"B" else event.kind,
                self._categories(sequence, event),
                self._name(sequence, event),
                plan.tracks[track],
                at,
            )
            if event.kind == b"B":
                head += b',"dur":%b' % _microseconds(int(plan.durations[self._begins]))
                self._begins += 1
            elif event.kind == b"X":
                head += b',"dur":%b' % _microseconds(event.duration)
            elif event.kind == b"i":
                head += b',"s":"t"'
            else:
                head += b',"id":"%d"' % event.id
            if event.annotations:
                head += self._args(sequence, event.annotations)
            self._out.append(head + b"}")
            for flow, _ in event.flows:
                self._flow(flow, track, at)
        for uuid, value in event.counted:
            if uuid in self._numbers:
                self._count(self._numbers[uuid], at, value, b"")

    def _flow(self, flow: int, track: int, at: bytes) -> None:
        phase = int(self._plan.flow_phases[self._flows])
        self._flows += 1
        if not phase:
            return
        kind = next((name for low, high, name in self._plan.flow_kinds if low <= flow <= high), b"flow")
        self._out.append(
            b'{"ph":"%c","cat":"%b","name":"%b",%b"ts":%b,"id":"%d"}'
            % (phase, kind, kind, self._plan.tracks[track], at, flow)
        )

    def _count(self, track: int, at: bytes, value: float | int, name: bytes) -> None:
        own, series, multiplier, differences = self._plan.counters[track] or (b"", b"value", 1, False)
        if multiplier != 1:
            value = float(value) * multiplier
        if differences:
            value = self._sums[track] = self._sums.get(track, 0.0) + float(value)
        self._out.append(
            b'{"ph":"C","name":"%b",%b"ts":%b,"args":{"%b":%b}}'
            % (own or name, self._plan.tracks[track], at, series, _number(value))
        )

    def _text(self, sequence: _Sequence, table: int, iid: int) -> bytes:
        found = sequence.interned.get((table, iid))
        if found is None:
            self.counts[NO_NAME] += 1
            return b""
        return found

    def _name(self, sequence: _Sequence, event: _Event) -> bytes:
        if event.name is not None:
            return escaped(event.name)
        return self._text(sequence, NAMES, event.name_iid) if event.name_iid else b""

    def _categories(self, sequence: _Sequence, event: _Event) -> bytes:
        return b",".join(
            self._text(sequence, CATEGORIES, category) if isinstance(category, int) else escaped(category)
            for category in event.categories
        )

    def _args(self, sequence: _Sequence, annotations: list[bytes]) -> bytes:
        try:
            items = [self._annotation(sequence, data, 0) for data in annotations]
        except WireError:
            self.counts[NO_ARGS] += 1
            return b""
        if len(items) == 1 and items[0][0] == b"args" and items[0][2]:
            return b',"args":' + items[0][1]  # as rankscope exports them
        return b',"args":{' + b",".join(b'"%b":%b' % (name, value) for name, value, _ in items) + b"}"

    def _annotation(
        self, sequence: _Sequence, data: bytes, depth: int, named: bool = True
    ) -> tuple[bytes, bytes, bool]:
        """Name and value as JSON, and whether it was an object in JSON. Items of a list have no name."""
        name: tuple[int, int, Any] = (0, 0, b"")
        value: tuple[int, int, Any] = (0, 0, b"")
        children: list[tuple[int, bytes]] = []
        for number, wire, content in fields(data):
            if number in (1, 10):
                name = number, wire, content
            elif 2 <= number <= 9 or number == 17:
                value = number, wire, content
            elif number in (11, 12) and depth < _MOST_NESTED:
                children.append((number, bytes_in(wire, content)))
        if not named:
            shown_name = b""
        elif name[0] == 1:
            shown_name = self._text(sequence, ARG_NAMES, number_in(*name[1:]))
        else:
            shown_name = escaped(bytes_in(*name[1:]))
        text = self._value(sequence, *value, depth)
        if not children:
            return shown_name, text, value[0] == 9 and text[:1] == b"{"
        entries: list[bytes] = []
        items: list[bytes] = []
        for number, content in children:
            key, inner, _ = self._annotation(sequence, content, depth + 1, named=number == 11)
            if number == 11:
                entries.append(b'"%b":%b' % (key, inner))
            else:
                items.append(inner)
        both = b"{" + b",".join(entries) + b"}" if entries else b"[" + b",".join(items) + b"]"
        return shown_name, both, False

    def _value(self, sequence: _Sequence, number: int, wire: int, content: Any, depth: int) -> bytes:
        if number == 2:
            return b"true" if number_in(wire, content) else b"false"
        if number in (3, 7):
            return b"%d" % number_in(wire, content)
        if number == 4:
            return b"%d" % signed(number_in(wire, content))
        if number == 5:
            return _number(double_in(wire, content))
        if number == 6:
            return b'"%b"' % escaped(bytes_in(wire, content))
        if number == 17:
            return b'"%b"' % self._text(sequence, STRINGS, number_in(wire, content))
        if number == 9:
            return bytes_in(wire, content) or b"null"
        return _nested(bytes_in(wire, content), depth + 1) if number == 8 else b"null"

    def _stage(self, sequence: _Sequence, time: int, data: bytes) -> None:
        duration = queue = stage = gpu = 0
        name = b""
        extra = b""
        try:
            for number, wire, value in fields(data):
                if number == 2:
                    duration = min(number_in(wire, value), _FARTHEST_NS)
                elif number == 13:
                    queue = number_in(wire, value)
                elif number == 14:
                    stage = number_in(wire, value)
                elif number == 11:
                    gpu = signed(number_in(wire, value))
                elif number == 17:
                    name = escaped(bytes_in(wire, value))
                elif number == 20:
                    name = self._text(sequence, NAMES, number_in(wire, value))
                elif number == 19 and not name:
                    name = self._text(sequence, KERNELS, number_in(wire, value))
                elif number == 6:
                    extra += _extra_data(bytes_in(wire, value))
                elif number == 21:
                    extra += _launch(bytes_in(wire, value))
        except WireError:
            self.counts[DAMAGED] += 1
            return
        lane = sequence.lanes.get(queue, (b'"%d"' % queue, b""))[0]
        category = sequence.lanes.get(stage, (b"", b"kernel"))[1]
        name = name or sequence.interned.get((SPECS, stage), b"")
        place = b'"pid":"%d","tid":%b,' % (gpu, lane)
        args = b'"device":%d' % gpu
        if lane[1:-1].isdigit():
            args += b',"stream":' + lane[1:-1]
        self._out.append(
            b'{"ph":"X","cat":"%b","name":"%b",%b"ts":%b,"dur":%b,"args":{%b%b}}'
            % (category, name, place, _microseconds(time - self._plan.base_ns), _microseconds(duration), args, extra)
        )  # fmt: skip


def _lane(name: bytes) -> bytes:
    """The tid of a queue: the number of a stream, or its name without the number that torch sorts by."""
    match = _LANE.match(name)
    assert match is not None
    if match[1]:
        return b'"%b"' % match[1]
    return b'"%b"' % escaped(name[match.end() :])


def _stage_category(name: bytes, category: int) -> bytes:
    known = _CATEGORY_OF_STAGE.get(name)
    return known or (b"kernel" if category == _COMPUTE else escaped(name))


def _extra_data(data: bytes) -> bytes:
    name = value = b""
    for number, wire, content in fields(data):
        if number == 1:
            name = bytes_in(wire, content)
        elif number == 2:
            value = bytes_in(wire, content)
    text = value if _NUMBER.fullmatch(value) else b'"%b"' % escaped(value)
    return b',"%b":%b' % (escaped(name), text)


def _launch(data: bytes) -> bytes:
    sizes = b""
    for number, wire, value in fields(data):
        if number in (1, 2):
            size = [0, 0, 0]
            for axis, kind, item in fields(bytes_in(wire, value)):
                if axis <= 3:
                    size[axis - 1] = number_in(kind, item) & 0xFFFF_FFFF
            name = b"grid" if number == 1 else b"block"
            sizes += b',"%b":[%d,%d,%d]' % (name, size[0], size[1], size[2])
    return sizes


def _nested(data: bytes, depth: int) -> bytes:
    """A NestedValue, the older way to write objects and lists."""
    if depth > _MOST_NESTED:
        return b"null"
    kind, scalar = 0, b"null"
    keys: list[bytes] = []
    values: list[bytes] = []
    for number, wire, content in fields(data):
        if number == 1:
            kind = number_in(wire, content)
        elif number == 2:
            keys.append(escaped(bytes_in(wire, content)))
        elif number in (3, 4):
            values.append(_nested(bytes_in(wire, content), depth + 1))
        elif number == 5:
            scalar = b"%d" % signed(number_in(wire, content))
        elif number == 6:
            scalar = _number(double_in(wire, content))
        elif number == 7:
            scalar = b"true" if number_in(wire, content) else b"false"
        elif number == 8:
            scalar = b'"%b"' % escaped(bytes_in(wire, content))
    if kind == 1:
        return b"{" + b",".join(b'"%b":%b' % pair for pair in zip(keys, values, strict=False)) + b"}"
    return b"[" + b",".join(values) + b"]" if kind == 2 else scalar


def _microseconds(ns: int) -> bytes:
    return b"%d.%03d" % divmod(ns, 1000) if ns >= 0 else b"-" + _microseconds(-ns)


def _number(value: float | int) -> bytes:
    if isinstance(value, int):
        return b"%d" % value
    text = b"%.17g" % value
    return b"null" if text[-1:] in b"fn" else text  # inf, nan


def packets(block: bytes) -> Iterator[bytes]:
    """The packets of a block, which has whole ones only."""
    at, end = 0, len(block)
    while at < end:
        length, at = read_varint(block, at + 1, end)
        yield block[at : at + length]
        at += length


@dataclass(frozen=True)
class Cut:
    """How far the bytes are whole packets."""

    end: int
    """Where the last whole one ends."""
    missing: int
    """Bytes that the packet after it lacks; 0 if that is not known."""
    damaged: bool
    """What follows is not a packet."""
    compressed: list[tuple[int, int, int, int]]
    """Packets that hold compressed packets: field number, begin and end of the packet, begin of the content."""


def cut(data: bytes) -> Cut:
    """Find the packets at the beginning of these bytes."""
    at, end = 0, len(data)
    compressed: list[tuple[int, int, int, int]] = []
    while at < end:
        if data[at] != PACKET << 3 | 2:
            return Cut(at, 0, True, compressed)
        try:
            length, begin = read_varint(data, at + 1, end)
        except WireError:
            return Cut(at, 0, end - at > 10, compressed)
        if length > end - begin:
            return Cut(at, length - (end - begin), False, compressed)
        if length and data[begin] in (0x92, 0xAA):  # the first bytes of the tags of both kinds
            content = _compressed_content(data, begin, begin + length)
            if content is not None:
                compressed.append((content[0], at, begin + length, content[1]))
        at = begin + length
    return Cut(at, 0, False, compressed)


def _compressed_content(data: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """Field number and place of the content if a packet holds nothing but compressed packets."""
    try:
        tag, at = read_varint(data, begin, end)
        length, at = read_varint(data, at, end)
    except WireError:
        return None
    known = tag in (COMPRESSED << 3 | 2, ZSTD_COMPRESSED << 3 | 2)
    return (tag >> 3, at) if known and at + length == end else None
