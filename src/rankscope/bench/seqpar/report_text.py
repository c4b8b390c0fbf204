"""The text report of `rankscope bench seqpar`, 80 columns wide."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from rankscope.text.plain_table import plain_table
from rankscope.units import format_ns

_WIDTH = 80
# Of more ranks than this, only the fastest and the slowest are shown.
_RANKS_SHOWN = 8


def report_text(report: dict[str, Any]) -> str:
    config = report["config"]
    ranks = f"{config['ranks']} rank" + "s" * (config["ranks"] > 1)
    size = f"S {config['sequence']}, H {config['hidden']}, {config['precision']}"
    # Ranks that --nproc starts are found by the variable RANK: not the name of a launcher.
    by = "" if config["launcher"] in ("RANK", "single process") else f" ({config['launcher']})"
    head = [
        f"seqpar: {ranks}{by}, {size}",
        f"{config['backend']} on {config['device_name']}, torch {config['torch']}",
    ]
    head += [fill(note, _WIDTH) for note in report["notes"]]
    blocks = [
        "\n".join(head),
        _parts(report),
        _ranks(report),
        "\n".join(fill(line, _WIDTH, subsequent_indent="  ") for line in _ending(report)),
    ]
    return "\n\n".join(blocks) + "\n"


def _parts(report: dict[str, Any]) -> str:
    rows = []
    for part in report["parts"]:
        percent = part.get("pct_of_peak")
        rows.append(
            (
                part["name"],
                _ms(part["p50_ns"]),
                figure(part.get("tflop_s")),
                "-" if percent is None else f"{percent:.1f} %",
                figure(part.get("algbw_gb_s")),
                figure(part.get("busbw_gb_s")),
            )
        )
    headings = ("Part", "p50 ms", "TFLOP/s", "of peak", "algbw GB/s", "busbw GB/s")
    return plain_table(headings, rows)


def _ranks(report: dict[str, Any]) -> str:
    """The times of each rank; of many ranks, the fastest and the slowest."""
    ranks = report["ranks"]
    title = f"Each rank, ms over {report['config']['iterations']} iterations"
    if len(ranks) > _RANKS_SHOWN:
        ordered = sorted(ranks, key=lambda rank: int(rank["wall_ns"]))
        half = _RANKS_SHOWN // 2
        ranks = ordered[:half] + ordered[-half:]
        title += f" (the {half} fastest and {half} slowest of {len(ordered)}; --json has all)"
    rows = []
    for name in [part["name"] for part in report["parts"]]:
        rows += [_times(name, rank["rank"], rank["parts"][name]) for rank in ranks]
    rows += [_times("iteration", rank["rank"], rank["iteration"]) for rank in ranks]
    headings = ("Part", "Rank", "Total", "Mean", "p50", "Min", "Max")
    return f"{title}\n{plain_table(headings, rows)}"


def _times(name: str, rank: int, times: dict[str, int]) -> tuple[str, ...]:
    keys = ("total_ns", "mean_ns", "p50_ns", "min_ns", "max_ns")
    return (name, str(rank), *(_ms(times[key]) for key in keys))


def _ending(report: dict[str, Any]) -> list[str]:
    iterations = report["config"]["iterations"]
    whole = report["time_to_solution_ns"]
    lines = [f"Time to solution: {format_ns(whole)}, {format_ns(whole / iterations)} an iteration"]
    overlap = report.get("overlap")
    if overlap is not None:
        faster = overlap["speedup"] >= 1
        ratio = overlap["speedup"] if faster else 1 / overlap["speedup"]
        lines.append(
            f"Overlapped in {overlap['chunks']} chunks: {format_ns(overlap['time_to_solution_ns'])}, "
            f"{ratio:.2f} times as {'fast' if faster else 'long'}"
        )
        if not faster:
            lines.append(_why_not_faster(report))
    check = report["check"]
    lines.append(
        f"Checked against a single-process reference: relative error {check['relative_error']:.1e}, "
        f"{check['tolerance']:g} allowed"
    )
    return lines


def _why_not_faster(report: dict[str, Any]) -> str:
    """The reason, as far as the figures show it."""
    config = report["config"]
    if config["ranks"] == 1:
        return "One rank has nothing to communicate: chunks only make its matmuls smaller."
    if config["device"] == "cpu" and config["cores"] <= config["ranks"]:
        return (
            f"{config['ranks']} ranks on {config['cores']} cores leave none for gloo's threads while the "
            "matmuls run, and smaller chunks cost more."
        )
    shares = {part["name"]: part["p50_ns"] for part in report["parts"]}
    moved = shares["ALLGATHER"] + shares["REDUCE_SCATTER"]
    share = 100 * moved / sum(shares.values())
    return f"Communication is {share:.0f} % of an iteration: smaller chunks cost more than overlap saves."


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:,.3f}"


def figure(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 0.01:
        return f"{value:.2g}"
    return f"{value:,.1f}" if value >= 100 else f"{value:.3f}" if value < 10 else f"{value:.2f}"
