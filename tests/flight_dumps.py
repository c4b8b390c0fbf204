"""Flight-recorder dumps written by tests, with the fields that torch writes."""

from __future__ import annotations

from typing import Any

T0 = 1_758_610_505_000_000_000


def op(
    group: str, seq: int, kind: str = "all_reduce", state: str = "scheduled", **more: Any
) -> dict[str, Any]:
    p2p = kind.startswith(("send", "recv"))
    return {
        "record_id": seq, "pg_id": int(group), "process_group": (group, f"G{group}"), "profiling_name": f"nccl:{kind}",
        "collective_seq_id": 0 if p2p else seq, "p2p_seq_id": seq if p2p else 0, "op_id": seq, "is_p2p": p2p,
        "time_created_ns": T0 + seq * 1_000_000, "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": T0 + seq * 1_000_000 + 500 if state == "completed" else None,
        "input_sizes": [[1024]], "output_sizes": [[1024]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "timeout_ms": 600_000, "retired": False, **more,
    }  # fmt: skip


def dump(
    entries: list[dict[str, Any]],
    groups: dict[str, list[int]],
    status: dict[str, tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """`status` is (last enqueued, last completed) by the rank's number for the group."""
    config = {name: {"name": name, "desc": f"G{name}", "ranks": str(ranks)} for name, ranks in groups.items()}
    progress = {
        number: {
            "last_enqueued_collective": asked,
            "last_started_collective": -1,
            "last_completed_collective": done,
        }
        for number, (asked, done) in (status or {}).items()
    }
    return {
        "version": "2.9",
        "pg_config": config,
        "nccl_version": "2.27",
        "pg_status": progress,
        "entries": entries,
    }
