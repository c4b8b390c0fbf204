"""Which bytes look like packets, and the names of packets that are not read."""

from __future__ import annotations

from collections.abc import Mapping

from rankscope.readers.perfetto.field_numbers import TRACE_PACKET, Packet
from rankscope.readers.protobuf import BYTES, VARINT, DamagedMessageError, read_varint

MOST_NUMBERS = 1024
"""Field numbers that are counted; extensions beyond are counted as this."""
_NAMES = {
    1: "ftrace_events", 2: "process_tree", 4: "inode_file_map", 5: "chrome_events", 7: "sys_stats", 9: "process_stats",
    33: "trace_config", 34: "ftrace_stats", 35: "trace_stats", 37: "profile_packet", 38: "battery", 39: "android_log",
    40: "power_rails", 43: "process_descriptor", 44: "thread_descriptor", 45: "system_info", 46: "trigger",
    49: "perfetto_metatrace", 51: "chrome_metadata", 52: "gpu_counter_event", 54: "streaming_profile_packet",
    57: "graphics_frame_event", 61: "module_symbols", 63: "gpu_log", 66: "perf_sample", 67: "cpu_info",
    68: "smaps_packet", 69: "service_event", 71: "gpu_mem_total_event", 72: "extension_descriptor", 78: "ui_state",
    89: "trace_uuid", 90: "track_event_range_of_interest", 124: "trace_provenance", 128: "gpu_info",
    129: "generic_gpu_frequency_event", 135: "stack_sample", MOST_NUMBERS: "extensions",
}  # fmt: skip
"""Field numbers of TracePacket.data. Others are shown as their number."""
_NUMBERS_IN_PACKETS = frozenset(
    (
        Packet.TRUSTED_UID, Packet.TIME, Packet.SEQUENCE, Packet.FLAGS, Packet.CLEARED_OLD, Packet.DROPPED,
        Packet.CLOCK, Packet.TRUSTED_PID, Packet.FIRST_ON_SEQUENCE, Packet.DROPPED_SINCE, Packet.MACHINE,
    )
)  # fmt: skip
_MARKS_OF_A_PACKET = frozenset(
    (
        Packet.TIME, Packet.SEQUENCE, Packet.TRACK_EVENT, Packet.STAGE, Packet.CLOCKS, Packet.DESCRIPTOR, Packet.CONFIG,
        Packet.SYNCHRONIZATION, Packet.UUID, Packet.COMPRESSED, Packet.ZSTD_COMPRESSED, Packet.ATTRIBUTES,
    )
)  # fmt: skip
_BESIDE_DATA = _NUMBERS_IN_PACKETS | {Packet.INTERNED, Packet.DEFAULTS}
_PACKETS_LOOKED_AT = 16


def named(counts: Mapping[int, int]) -> dict[str, int]:
    """The number of packets of each kind, by name."""
    return {_NAMES.get(number, f"field {number}"): count for number, count in sorted(counts.items())}


def looks_like_packets(head: bytes, named: bool) -> bool:
    """True if most of the first bytes of a file are packets: other protobuf files also begin with a field of bytes.

    A file that is `named` as a trace may consist of packets of any kind.
    """
    seen: list[set[int] | None] = []
    at = 0
    while at < len(head) and head[at] == TRACE_PACKET << 3 | BYTES and len(seen) < _PACKETS_LOOKED_AT:
        try:
            length, begin = read_varint(head, at + 1, len(head))
        except DamagedMessageError:
            break
        seen.append(_fields_seen(head, begin, begin + length))
        at = begin + length
    good = [numbers for numbers in seen if numbers is not None]
    marked = named or any(numbers & _MARKS_OF_A_PACKET for numbers in good)
    return 2 * len(good) > len(seen) and marked


def _fields_seen(head: bytes, begin: int, end: int) -> set[int] | None:
    """The field numbers of what may be a packet, as far as it is there; None if it cannot be one."""
    seen: set[int] = set()
    at, stop = begin, min(end, len(head))
    while at < stop:
        try:
            tag, at = read_varint(head, at, stop)
            number, wire = tag >> 3, tag & 7
            if number in _NUMBERS_IN_PACKETS:
                if wire != VARINT:
                    return None
                _, at = read_varint(head, at, stop)
            elif number and wire == BYTES:
                length, at = read_varint(head, at, stop)
                at += length
            else:
                return None
        except DamagedMessageError:
            return seen if end > len(head) else None
        seen.add(number)
        if len(seen - _BESIDE_DATA) > 1:  # a packet has one kind of data
            return None
    return seen if at <= end else None
