"""The table of `rankscope bench collectives`."""

from __future__ import annotations

from rankscope.bench.collectives.sweep import Config, Row
from rankscope.bench.ranks.world import World
from rankscope.text.plain_table import plain_table
from rankscope.units import format_count


def report_text(rows: list[Row], config: Config, world: World) -> str:
    ranks = f"{world.size} rank{'s' * (world.size != 1)}"
    head = [
        f"collectives: {ranks}, {world.backend}, {config.dtype}, {world.device_name}",
        f"{config.iterations} iterations after {config.warmup} of warm-up; GB = 1e9; "
        "sizes and factors as in nccl-tests",
        *world.notes,
    ]
    table = plain_table(
        ("Kind", "Bytes", "Time µs", "algbw GB/s", "busbw GB/s", "Wrong"),
        [
            (
                row["kind"],
                format_count(row["bytes"]),
                f"{row['time_us']:,.1f}",
                f"{row['algbw_gb_s']:.3f}",
                f"{row['busbw_gb_s']:.3f}",
                str(row["wrong"]),
            )
            for row in rows
            if row["bytes"] is not None
        ],
    )
    missing = [f"{row['kind']}: {row['note']}" for row in rows if row["note"]]
    return "\n".join([*head, "", table, *(["", *missing] if missing else [])]) + "\n"
