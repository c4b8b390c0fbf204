"""Field numbers of perfetto/trace/*.proto that Python reads or writes, by message. native/perfetto.c has its own names
for those of events."""

from __future__ import annotations

TRACE_PACKET = 1
"""Of Trace, which consists of packets."""


class Packet:
    """TracePacket."""

    CLOCKS, TIME, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS = 6, 8, 10, 11, 12, 13
    TRUSTED_UID, CONFIG, SYNCHRONIZATION, CLEARED_OLD, DROPPED, COMPRESSED = 3, 33, 36, 41, 42, 50
    STAGE, CLOCK, DEFAULTS, DESCRIPTOR = 53, 58, 59, 60
    TRUSTED_PID, FIRST_ON_SEQUENCE, DROPPED_SINCE, UUID, MACHINE = 79, 87, 88, 89, 98
    ATTRIBUTES, ZSTD_COMPRESSED = 126, 133


class Clock:
    """ClockSnapshot, and the clocks in it."""

    CLOCK, ID, TIME = 1, 1, 2


class Event:
    """TrackEvent."""

    CATEGORY_IID, ANNOTATION, TYPE, NAME_IID, TRACK = 3, 4, 9, 10, 11
    DOUBLE_VALUE, FLOW, FLOW_END = 44, 47, 48


class Annotation:
    """DebugAnnotation."""

    NAME_IID, JSON = 1, 9


class Interned:
    """InternedData, and its entries."""

    CATEGORIES, NAMES, ANNOTATION_NAMES = 1, 2, 3
    IID, TEXT = 1, 2


class Descriptor:
    """TrackDescriptor."""

    UUID, NAME, PROCESS, THREAD, PARENT, COUNTER, STATIC_NAME, ORDERING, ORDER, ATRACE_NAME = (
        1, 2, 3, 4, 5, 8, 10, 11, 12, 13,
    )  # fmt: skip


class Process:
    """ProcessDescriptor."""

    PID, ORDER, NAME, LABEL = 1, 3, 6, 8


class Thread:
    """ThreadDescriptor."""

    PID, TID, ORDER, NAME = 1, 2, 3, 5


class Counter:
    """CounterDescriptor."""

    UNIT, MULTIPLIER, DIFFERENCES, UNIT_NAME = 3, 4, 5, 6


class Attribute:
    """TraceAttributes, and its entries."""

    ATTRIBUTE, KEY, TEXT = 1, 1, 3
