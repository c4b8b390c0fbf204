"""What a run has that tells of a hang: telemetry, and calls of collectives that did not run. It is looked for in every
run, so this loads nothing else."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.capture.telemetry_ring import FOLDER
from rankscope.records import dataclass
from rankscope.timeline.run import Run


def telemetry_folder(run: Run) -> Path | None:
    """The run folder that holds the telemetry of these traces."""
    # Dumps of the flight recorder that ranks wrote in a hang are among the telemetry.
    sources = (entry.source.parent for entry in run.segments)
    folders = dict.fromkeys(folder.parent if folder.name == FOLDER else folder for folder in sources)
    for folder in folders:
        if any(chain(folder.glob(FOLDER), folder.glob(f"*/{FOLDER}"))):
            from rankscope.watch.rings import has_telemetry

            if has_telemetry(folder):
                return folder
    return None


@dataclass(frozen=True)
class PendingCall:
    """The first of a rank's last calls of collectives, of which no kernel ran."""

    group: str
    members: str
    kind: str


@kept_per_rank("pending_call", PendingCall, any_window=True)
def pending_calls(run: Run, scope: Scope) -> dict[int, PendingCall]:
    """Of the ranks that have one. The profiler waits for the GPU where it stops, unless that never ends."""
    rows = run.rows(f"""
        WITH calls AS (
            SELECT rank, segment, id, start_ns, max(start_ns) FILTER (device_ns > 0) OVER (PARTITION BY rank) AS last_ns
            FROM slices WHERE name = 'record_param_comms' AND {scope.where()}
        )
        SELECT rank, args->>'Process Group Name', args->>'Process Group Ranks', collective
        FROM calls JOIN events USING (rank, segment, id) WHERE start_ns > last_ns
        QUALIFY start_ns = min(start_ns) OVER (PARTITION BY rank) ORDER BY rank
    """)
    return {rank: PendingCall(*map(str, call)) for rank, *call in rows}
