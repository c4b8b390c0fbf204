"""What 16,384 ranks need, computed from what was measured of fewer: the tables of docs/scale.md."""

from __future__ import annotations

from figures import Figures, Part, part_table

RANKS = 16_384
TRACE_GB = 1.0
"""Of each rank, as text."""
CORES_OF_NODE = 64
NODES = (1, 4, 16)


def markdown(scaling: Figures) -> str:
    """The measured table, and the computed one; empty where the parts were not measured."""
    ranks, cores = scaling.parts.get("ranks"), scaling.parts.get("cores")
    lines = []
    if ranks is not None and ranks.rows:
        machine = scaling.machine
        lines += [
            f"Measured {ranks.date} on {machine['cores']} cores ({machine['CPU']}), {machine['memory']}:",
            "",
        ]
        lines += part_table(ranks)
        answers = _answers(ranks)
        if answers:
            lines += ["", f"### Computed: {RANKS:,} ranks with traces of {TRACE_GB:g} GB", ""]
            lines += ["| | measured | a rank more | computed |", "|---|---|---|---|"]
            lines += [*(_reading(cores) if cores else []), *answers]
            lines += ["", "A straight line through the two largest runs; none of the last column was tried."]
    return "\n".join(lines)


def _reading(cores: Part) -> list[str]:
    """From the largest file that was read on one core: it has no part that a small file would have more of."""
    rows = [row for row in cores.rows if row.program == "1 core"]
    if not rows:
        return []
    row = max(rows, key=lambda each: each.size_bytes)
    facts = cores.facts.get(row.input, {})
    gigabytes = row.size_bytes / 1e9
    cpu = row.cost.cpu_seconds / gigabytes * TRACE_GB
    hours = cpu * RANKS / 3600
    times = [f"{60 * hours / nodes / CORES_OF_NODE:.0f} min on {nodes}" for nodes in NODES]
    memory = row.cost.peak_bytes / 1e9
    lines = [
        _line(
            "reading, CPU",
            f"{row.cost.cpu_seconds:.1f} s for {gigabytes:.2f} GB",
            f"{cpu:.1f} s",
            f"{hours:.0f} hours",
        ),
        _line(f"reading, on nodes of {CORES_OF_NODE} cores", "", "", ", ".join(times)),
        _line(
            "memory of a node that reads", f"{memory:.2f} GB a core", "", f"{memory * CORES_OF_NODE:.0f} GB"
        ),
    ]
    if facts.get("store bytes"):
        share = facts["store bytes"] / facts["trace bytes"]
        terabytes = share * TRACE_GB * RANKS / 1e3
        lines.append(
            _line(
                "disk for the tables",
                f"{share:.1%} of the traces",
                f"{share * TRACE_GB * 1e3:.0f} MB",
                f"{terabytes:.1f} TB beside {TRACE_GB * RANKS / 1e3:.0f} TB of traces",
            )
        )
    return lines


def _answers(part: Part) -> list[str]:
    """What grows with the ranks, whatever their traces hold."""
    runs = {int(facts["ranks"]): kind for kind, facts in part.facts.items() if kind.endswith("ranks")}
    if len(runs) < 2:
        return []
    fewer, more = sorted(runs)[-2:]
    lines = []
    for name, unit, scale in (
        ("store files", "", 1.0),
        ("index bytes", " MB", 1e6),
        ("derived bytes", " MB", 1e6),
    ):
        values = (part.facts[runs[fewer]].get(name, 0) / scale, part.facts[runs[more]].get(name, 0) / scale)
        lines.append(_grown(name.replace("bytes", "of the store"), fewer, more, values, unit))
    for program in dict.fromkeys(row.program for row in part.rows):
        rows = (part.find(runs[fewer], program), part.find(runs[more], program))
        if "import" in program or program.startswith("ingest") or rows[0] is None or rows[1] is None:
            continue
        costs = (rows[0].cost, rows[1].cost)
        times, memory = [cost.seconds for cost in costs], [cost.peak_bytes / 1e9 for cost in costs]
        lines.append(_grown(program, fewer, more, (times[0], times[1]), " s"))
        lines.append(_grown(f"{program}: memory", fewer, more, (memory[0], memory[1]), " GB"))
    return lines


def at_ranks(fewer: int, more: int, values: tuple[float, float], ranks: int = RANKS) -> tuple[float, float]:
    """What a rank more adds, and the value for so many: a straight line, which does not fall."""
    slope = max(0.0, (values[1] - values[0]) / (more - fewer))
    return slope, values[1] + slope * (ranks - more)


def _grown(name: str, fewer: int, more: int, values: tuple[float, float], unit: str) -> str:
    slope, computed = at_ranks(fewer, more, values)
    return _line(
        name,
        f"{_number(values[1])}{unit} of {more:,} ranks",
        f"{_number(slope)}{unit}",
        f"{_number(computed)}{unit}",
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
