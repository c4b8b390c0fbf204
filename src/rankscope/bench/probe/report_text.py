"""The table and the verdict of `rankscope probe`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from textwrap import fill
from typing import Any

from rankscope.bench.probe.judge import Verdict
from rankscope.bench.probe.results import TESTS, Results
from rankscope.text.plain_table import plain_table

_WIDTH = 100
_SHOWN = 16
"""Of more devices only those with a verdict are shown, and the median of the others."""


def report_text(results: Results, verdicts: Sequence[Verdict]) -> str:
    ranks = len(results.devices)
    models = ", ".join(dict.fromkeys(device.model for device in results.devices))
    head = f"probe: {ranks} rank{'s' * (ranks != 1)}, {models}, {results.backend}, torch {results.torch}"
    notes = [f"{device.name}: {note}" for device in results.devices for note in device.notes]
    lines = [head, "", _table(results, verdicts), *([""] if notes else []), *notes, ""]
    for verdict in verdicts:
        lines.append(fill(f"{verdict.severity}: {verdict.text}.", _WIDTH, subsequent_indent="  "))
        lines.append(fill(verdict.hint, _WIDTH, initial_indent="  → ", subsequent_indent="    "))
    return "\n".join(lines) + "\n"


def _table(results: Results, verdicts: Sequence[Verdict]) -> str:
    """Columns that no device fills are left out."""
    devices = results.devices
    slow = {(rank, test) for verdict in verdicts for rank in verdict.ranks for test in verdict.tests}
    named = {rank for verdict in verdicts for rank in verdict.ranks}
    shown = (
        devices if len(devices) <= _SHOWN else [device for device in devices if device.rank in named][:_SHOWN]
    )
    others = [device for device in devices if device not in shown]
    headings = ["rank", "device", *(f"{test.title} {test.unit}" for test in TESTS.values()), *_STATES]
    rows = []
    for device in shown:
        rates = [_figure(device.rate(test), (device.rank, test) in slow) for test in TESTS]
        rows.append(
            [str(device.rank), device.name, *rates, *(cell(device.state) for cell in _STATES.values())]
        )
    if others:
        medians = [
            _median([rate for device in others if (rate := device.rate(test)) is not None]) for test in TESTS
        ]
        rows.append(["", f"median of {len(others)} others", *map(_figure, medians), *("" for _ in _STATES)])
    used = [at for at in range(len(headings)) if any(row[at] for row in rows)]
    table = plain_table([headings[at] for at in used], [[row[at] for at in used] for row in rows], left=2)
    return table + ("\n* slow" if slow else "")


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _figure(value: float | None, slow: bool = False) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" + "*" * slow if value >= 100 else f"{value:.3g}" + "*" * slow


def _number(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda state: f"{state[key]:,.0f}" if key in state else ""


def _limits(state: dict[str, Any]) -> str:
    reasons = (reason.removeprefix("throttle: ") for reason in state.get("reasons", {}))
    return ", ".join(reason for reason in reasons if reason != "GPU idle")


def _link(state: dict[str, Any]) -> str:
    return (
        f"gen {state['pcie_gen']:.0f} x{state['pcie_width']:.0f}"
        if {"pcie_gen", "pcie_width"} <= state.keys()
        else ""
    )


def _faults(state: dict[str, Any]) -> str:
    parts = [f"ECC {state['ecc_uncorrected']:.0f}"] if "ecc_uncorrected" in state else []
    return ", ".join([*parts, *(f"Xid {number}" for number in state.get("xids", ()))])


def _cpu(state: dict[str, Any]) -> str:
    return f"{100 * min(state['cpu_share'], 1):.0f} %" if "cpu_share" in state else ""


_STATES: dict[str, Callable[[dict[str, Any]], str]] = {
    "CPU share": _cpu,
    "SM MHz": _number("sm_clock_mhz"),
    "power W": _number("power_w"),
    "limit W": _number("power_limit_w"),
    "°C": _number("temperature_c"),
    "limited by": _limits,
    "PCIe": _link,
    "errors": _faults,
}
