"""Which rank runs on which node, as `rankscope profile` records it."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.timeline.run import Run


def nodes(run: Run) -> dict[int, str]:
    """By rank, the name of its host; ranks of other tools' traces are left out."""
    hosts = {}
    for entry in run.timelines:
        captured = entry.manifest.get("header", {}).get("rankscope")
        host = captured.get("host") if isinstance(captured, dict) else None
        if host:
            hosts[entry.rank] = str(host)
    return hosts


def node_of(run: Run, ranks: Sequence[int]) -> str | None:
    """The node whose ranks these are, all of them; None for one rank, or where the run has one node."""
    hosts = nodes(run)
    names = {hosts.get(rank) for rank in ranks}
    if len(ranks) < 2 or len(names) != 1 or len(set(hosts.values())) < 2:
        return None
    (name,) = names
    everyone = {rank for rank, host in hosts.items() if host == name}
    return name if name and everyone == set(ranks) else None
