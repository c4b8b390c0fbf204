"""The table and the verdicts of `rankscope probe`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from textwrap import fill
from typing import Any

from rankscope.bench.probe.judge import Verdict
from rankscope.bench.probe.results import TESTS, DeviceResult, Results
from rankscope.text.plain_table import plain_table

_WIDTH = 100
_UNITS = "matmul in TFLOP/s, the other tests in GB/s; in node, between: all_reduce with the best partner"
_SHOWN = 16
"""Of more devices only those with a verdict are shown, and the median of the others."""


def report_text(results: Results, verdicts: Sequence[Verdict]) -> str:
    ranks = len(results.devices)
    models = ", ".join(dict.fromkeys(device.model for device in results.devices))
    head = f"probe: {ranks} rank{'s' * (ranks != 1)}, {models}, {results.backend}, torch {results.torch}"
    notes = [f"{device.name}: {note}" for device in results.devices for note in device.notes]
    lines = [head, "", _table(results.devices, verdicts), *([""] if notes else []), *notes, ""]
    for verdict in verdicts:
        lines.append(fill(f"{verdict.severity}: {verdict.text}.", _WIDTH, subsequent_indent="  "))
        lines.append(fill(verdict.hint, _WIDTH, initial_indent="  → ", subsequent_indent="    "))
    return "\n".join(lines) + "\n"


def _table(devices: Sequence[DeviceResult], verdicts: Sequence[Verdict]) -> str:
    """Columns that no device fills are left out."""
    slow = {(rank, test) for verdict in verdicts for rank in verdict.ranks for test in verdict.tests}
    named = {rank for verdict in verdicts if verdict.cause for rank in verdict.ranks}
    shown = devices if len(devices) <= _SHOWN else [each for each in devices if each.rank in named][:_SHOWN]
    others = [device for device in devices if device not in shown]
    rows = [
        [
            str(device.rank),
            device.name,
            *(_figure([device], test) + "*" * ((device.rank, test) in slow) for test in TESTS),
            *(cell(device.state) for cell in _STATES.values()),
        ]
        for device in shown
    ]
    if others:
        medians = [_figure(others, test) for test in TESTS]
        rows.append(["", f"median of {len(others)} others", *medians, *("" for _ in _STATES)])
    headings = ["rank", "device", *(test.title for test in TESTS.values()), *_STATES]
    used = [at for at in range(len(headings)) if any(row[at] for row in rows)]
    table = plain_table([headings[at] for at in used], [[row[at] for at in used] for row in rows], left=2)
    return table + f"\n{_UNITS}{'; * slow' if slow else ''}"


def _figure(devices: Sequence[DeviceResult], test: str) -> str:
    """The median of those that did the test."""
    rates = [device.rate(test) for device in devices if test in device.rates]
    if not rates:
        return ""
    rate = statistics.median(rates)
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _number(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda state: f"{state[key]:,.0f}" if key in state else ""


def _power(state: dict[str, Any]) -> str:
    limit = f"/{state['power_limit_w']:,.0f}" if "power_limit_w" in state else ""
    return f"{state['power_w']:,.0f}{limit}" if "power_w" in state else ""


def _limits(state: dict[str, Any]) -> str:
    reasons = (reason.removeprefix("throttle: ") for reason in state.get("reasons", {}))
    return ", ".join(reason for reason in reasons if reason != "GPU idle")


def _link(state: dict[str, Any]) -> str:
    return (
        f"{state['pcie_gen']:.0f} x{state['pcie_width']:.0f}"
        if "pcie_gen" in state and "pcie_width" in state
        else ""
    )


def _errors(state: dict[str, Any]) -> str:
    ecc = [f"ECC {state['ecc_uncorrected']:.0f}"] if state.get("ecc_uncorrected") else []
    errors = ", ".join([*ecc, *(f"Xid {number}" for number in state["xids"])])
    return errors or ("none" if "ecc_uncorrected" in state else "")


_STATES: dict[str, Callable[[dict[str, Any]], str]] = {
    "CPU share": lambda state: f"{100 * state['cpu_share']:.0f} %" if "cpu_share" in state else "",
    "SM MHz": _number("sm_clock_mhz"),
    "W/limit": _power,
    "°C": _number("temperature_c"),
    "PCIe": _link,
    "errors": _errors,
    "limited by": _limits,
}
