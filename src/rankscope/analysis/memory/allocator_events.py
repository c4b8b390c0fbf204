"""The allocator's [memory] events in a trace: how to select them, and how their device is named."""

from __future__ import annotations

IS_MEMORY_EVENT = "name = '[memory]' AND allocated_bytes IS NOT NULL"
DEVICE_NAME = "CASE device_type WHEN 0 THEN 'CPU' ELSE concat('GPU ', device) END"

NO_MEMORY_EVENTS = (
    "the trace has no [memory] events; rankscope profile --profile-memory (profile_memory=True) records them"
)
