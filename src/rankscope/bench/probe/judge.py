"""Which device is slow, by how much, and why: a pure function of the results of any number of ranks and nodes.

A rate is compared with that of the other devices of the same model, with an earlier probe, and with the data sheet.
No error of measurement makes a device too fast. So the reference among devices is near the upper end: the second
fastest of the others, of many the upper quartile. That also names the slow half, or more, of a set.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rankscope.bench.probe.results import TESTS, DeviceResult, PairResult, Results, device_names
from rankscope.devices import find_device
from rankscope.model import HW_POWER_BRAKE, HW_SLOWDOWN, HW_THERMAL, SW_POWER_CAP, SW_THERMAL

OK = "ok"
SEVERITIES = ("critical", "warning", OK, "info")
UNSTEADY, UNKNOWN, CONTENTION = "unsteady", "unknown", "contention"
"""Causes."""

_OF_DATA_SHEET = {"matmul": 0.7, "memory": 0.85}
"""What devices reach of the data sheet's peak: an H200 0.71 at its power limit (bfloat16, 8192 cubed) and 0.85."""
_DATA_SHEET_LIMIT = 0.2
"""Models differ in what they reach."""
_OTHER_FORMS = re.compile(r"\bMIG\b|\bNVL\b|AMD")
"""Parts of a GPU, cards with a lower limit of power than the data sheet is for, and GPUs that reach less of it."""
_STEADY = 0.75
"""A device is slow if this share of its blocks is slow."""
_CPU_SHARE = 0.9
_LOWER_CLOCK = 0.05
_FEW_PAIRS = 0.1
"""More slow pairs than this are how the machine is wired."""
_HARDWARE_XIDS = frozenset({48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120})
"""Memory, NVLink, bus and firmware errors in NVIDIA's table of Xid. Others are mostly errors of programs."""

Devices = Sequence[DeviceResult]
Ranked = dict[tuple[str, str], list[float]]
"""The rates by model and test, the fastest first."""


class Verdict(NamedTuple):
    severity: str
    text: str
    hint: str
    ranks: tuple[int, ...]
    tests: tuple[str, ...] = ()
    """In which the device is slow, the first with this cause."""
    cause: str = ""


class Reference(NamedTuple):
    rate: float
    limit: float
    words: str


class Shortfall(NamedTuple):
    """A test in which a device is slow."""

    test: str
    ratio: float
    than: str
    steady: bool


class Cause(NamedTuple):
    name: str
    evidence: str
    hint: str


class Remark(NamedTuple):
    """What is to be said of one device."""

    device: DeviceResult
    severity: str
    cause: Cause
    slow: tuple[Shortfall, ...] = ()


def judge(results: Results, baseline: Results | None = None) -> list[Verdict]:
    """The worst first. Where no device is slow, one verdict says so."""
    devices = results.devices
    ranked, before = _ranked(devices), _ranked(baseline.devices if baseline else ())
    slow = {device.rank: tuple(_shortfalls(device, ranked, before)) for device in devices}
    remarks: list[Remark] = []
    for device in devices:
        peers = [other for other in devices if other is not device and other.model == device.model]
        remarks += _remarks(device, peers, slow[device.rank], [peer for peer in peers if not slow[peer.rank]])
    verdicts = [*_grouped(remarks), *_slow_pairs(results, {rank for rank, tests in slow.items() if tests})]
    if not any(verdict.tests for verdict in verdicts):
        compared = any(
            _references(device, test, ranked, before) for device in devices for test in device.rates
        )
        verdicts.append(_all_clear(devices, compared))
    return sorted(verdicts, key=lambda verdict: (SEVERITIES.index(verdict.severity), not verdict.tests))


def _ranked(devices: Devices) -> Ranked:
    ranked: Ranked = {}
    for device in devices:
        for test in device.rates:
            ranked.setdefault((device.model, test), []).append(device.rate(test))
    return {key: sorted(rates, reverse=True) for key, rates in ranked.items()}


def _references(device: DeviceResult, test: str, ranked: Ranked, before: Ranked) -> list[Reference]:
    key, limit = (device.model, test), TESTS[test].limit
    others = ranked[key].copy()
    others.remove(device.rate(test))
    references = []
    if others:
        count = "" if len(others) == 1 else f" {len(others)}"
        at = min(max(1, len(others) // 4), len(others) - 1)
        references.append(Reference(others[at], limit, f"the other{count}"))
    if key in before:
        references.append(Reference(statistics.median(before[key]), limit, "in the baseline"))
    sheet = find_device(device.model)
    usual_form = device.sharing == 1 and not _OTHER_FORMS.search(device.model)
    if sheet is not None and usual_form and test in _OF_DATA_SHEET:
        peak = {"matmul": sheet.tflops["bfloat16"], "memory": 1e3 * (sheet.bandwidth_tb_s or 0)}[test]
        share = _OF_DATA_SHEET[test]
        of_sheet = f"{100 * share:.0f} % of the data sheet's {peak:,.0f} {TESTS[test].unit}"
        references.append(Reference(share * peak, _DATA_SHEET_LIMIT, f"usual for {sheet.name} ({of_sheet})"))
    return references


def _shortfalls(device: DeviceResult, ranked: Ranked, before: Ranked) -> Iterator[Shortfall]:
    for test in TESTS:
        if test in device.rates:
            rate = device.rate(test)
            for reference in _references(device, test, ranked, before):
                least = (1 - reference.limit) * reference.rate
                if rate < least:
                    steady = _mostly_below(least, device.rates[test])
                    yield Shortfall(test, rate / reference.rate, reference.words, steady)
                    break


def _mostly_below(least: float, rates: Sequence[float]) -> bool:
    return sum(rate < least for rate in rates) >= _STEADY * len(rates)


def _remarks(
    device: DeviceResult, peers: Devices, slow: tuple[Shortfall, ...], healthy: Devices
) -> Iterator[Remark]:
    """What slows a device down, and what is wrong with it although it is not slow."""
    if device.busy:
        use = f"in use ({device.state.get('busy_pct', 0):.0f} % busy), not tested"
        hint = "Repeat the probe when its job has ended, or between two jobs."
        yield Remark(device, "info", Cause("in use", use, hint))
        return
    if wrong := _wrong_result(device, peers):
        yield Remark(device, "critical", wrong)
    named = ""
    if slow:
        cause = _cause(device, healthy, slow[0])
        named = cause.name
        yield Remark(device, "info" if named in (UNSTEADY, CONTENTION) else "warning", cause, slow)
    if errors := _errors(device.state):
        hint = f"Reset or exchange it: nvidia-smi -i {device.gpu} -q -d ECC,ROW_REMAPPER"
        yield Remark(device, "warning", Cause("errors", errors, hint))
    for condition in (_clock_cause(device, ()), _link_cause(device, ()), _contention(device)):
        if condition is not None and condition.name not in (named, UNKNOWN):
            # Cores that are taken on all ranks are no difference between them.
            alone = (_usual(peers, "cpu_share") or 0) > device.state.get("cpu_share", 1) + 1 - _CPU_SHARE
            yield Remark(device, "warning" if alone else "info", condition)


def _grouped(remarks: Sequence[Remark]) -> Iterator[Verdict]:
    """One verdict for devices of a host that are slow in the same test for the same reason."""
    groups: dict[tuple[str, ...], list[Remark]] = {}
    for remark in remarks:
        if remark.slow:
            same: tuple[str, ...] = remark.slow[0].test, remark.slow[0].than
        else:
            same = () if remark.severity == "info" else (remark.cause.evidence,)
        groups.setdefault((remark.device.host, remark.severity, remark.cause.name, *same), []).append(remark)
    for members in groups.values():
        named = [remark.device for remark in members]
        worst = min(members, key=lambda remark: remark.slow[0].ratio if remark.slow else 1.0)
        text = device_names(named)
        if worst.slow:
            test, ratio, than, _ = worst.slow[0]
            text = named[0].host if test.startswith("disk") else text
            text += f" run{'s' * (len(named) == 1)} {TESTS[test].action} {slower(ratio)} than {than}"
        text += f": {worst.cause.evidence}"
        if worst.slow[1:]:
            also = (f"{TESTS[short.test].action} ({slower(short.ratio)})" for short in worst.slow[1:])
            text += f". Also slow: {', '.join(also)}"
        ranks, tests = (
            tuple(sorted(device.rank for device in named)),
            tuple(short.test for short in worst.slow),
        )
        yield Verdict(worst.severity, text, worst.cause.hint, ranks, tests, worst.cause.name)


def slower(ratio: float) -> str:
    """'18 % slower', '2.1x slower'."""
    return f"{100 * (1 - ratio):.0f} % slower" if ratio > 0.5 else f"{1 / ratio:.1f}x slower"


def _cause(device: DeviceResult, healthy: Devices, slow: Shortfall) -> Cause:
    if taken := _contention(device):  # others use the caches and the memory too
        return taken
    if not slow.steady:
        evidence = "the rate varies, which is not enough evidence"
        return Cause(UNSTEADY, evidence, "Repeat the probe for longer: rankscope probe --seconds 20")
    if slow.test in ("matmul", "memory") and (cause := _clock_cause(device, healthy)):
        return cause
    if slow.test in ("to_gpu", "from_gpu") and (cause := _link_cause(device, healthy)):
        return cause
    if slow.test in ("in_node", "between_nodes"):
        hint = f"Check links and network cards of {device.host}: nvidia-smi nvlink --status, ibstat, ethtool"
        return Cause("link", "own link or network card", hint)
    if slow.test.startswith("disk"):
        hint = "Check what else uses it, and the mount: mount, iostat -x 1"
        return Cause("disk", f"the disk or file system as {device.host} sees it", hint)
    hint = f"Compare {device.host} with another node: lscpu, cpupower frequency-info, dmidecode -t memory"
    return Cause(UNKNOWN, "slower cores", hint)


def _contention(device: DeviceResult) -> Cause | None:
    share = device.state.get("cpu_share", 1.0)
    if share >= _CPU_SHARE:
        return None
    evidence = f"other processes take the cores (the probe got {100 * share:.0f} % of their time)"
    return Cause(CONTENTION, evidence, f"Look at what else runs on {device.host}: top")


def _usual(devices: Devices, key: str) -> float | None:
    values = [device.state[key] for device in devices if device.state.get(key) is not None]
    return statistics.median(values) if values else None


def _limited(state: Mapping[str, Any], *reasons: str) -> bool:
    """Whether the clock was limited by one of these in a good part of the samples."""
    return any(state.get("reasons", {}).get(reason, 0) > 0.1 for reason in reasons)


def _clock_cause(device: DeviceResult, healthy: Devices) -> Cause | None:
    """Why a GPU computes slowly. A power cap alone is no reason: large matmuls take a healthy GPU to its limit."""
    if device.gpu is None:
        return None
    state, name = device.state, device.name
    clock, usual_clock = state.get("sm_clock_mhz", 0), _usual(healthy, "sm_clock_mhz")
    clocks = f"SM clock {clock:,.0f} MHz" + (f", the others {usual_clock:,.0f}" if usual_clock else "")
    limit = state.get("power_limit_w", 0)
    usual_limit = _usual(healthy, "power_limit_w") or state.get("default_power_limit_w", 0)
    if _limited(state, SW_THERMAL, HW_THERMAL):
        evidence = f"thermal slowdown ({state.get('temperature_c', 0):.0f} °C; {clocks})"
        hint = f"Check the cooling of {name}: nvidia-smi -q -d TEMPERATURE,PERFORMANCE"
        return Cause("thermal", evidence, hint)
    if _limited(state, HW_SLOWDOWN, HW_POWER_BRAKE):
        hint = f"Check the power supply of {device.host}: nvidia-smi -q -d PERFORMANCE,POWER"
        return Cause("hardware slowdown", f"hardware slowdown or power brake ({clocks})", hint)
    if 0 < limit < 0.97 * usual_limit:
        evidence = f"power cap ({limit:,.0f} W instead of {usual_limit:,.0f} W; {clocks})"
        hint = f"Raise the limit: nvidia-smi -i {device.gpu} -pl {usual_limit:.0f}"
        return Cause("power cap", evidence, hint)
    lowest, highest = state.get("sm_clock_range_mhz", (0, 0))
    possible = state.get("highest_sm_clock_mhz", 0)
    if 0 < lowest == highest < (1 - _LOWER_CLOCK) * possible and not _limited(state, SW_POWER_CAP):
        evidence = f"SM clock locked at {clock:,.0f} MHz (highest: {possible:,.0f} MHz)"
        return Cause("locked clock", evidence, f"Unlock it: nvidia-smi -i {device.gpu} -rgc")
    if usual_clock and clock < (1 - _LOWER_CLOCK) * usual_clock:
        why = ", at the same power limit" if _limited(state, SW_POWER_CAP) else ""
        hint = f"Check cooling and settings of {name}: nvidia-smi -q -d CLOCK,POWER,PERFORMANCE"
        return Cause("low clock", f"lower clock ({clocks}{why})", hint)
    hint = f"Look for other processes on {name} (nvidia-smi), run dcgmi diag -r 3, or exchange it."
    return Cause(UNKNOWN, f"no limit of clock or power explains it ({clocks})", hint)


def _link_cause(device: DeviceResult, healthy: Devices) -> Cause | None:
    if "to_gpu" not in device.rates:  # an idle link is slow to save power
        return None
    for key, letter in (("pcie_width", "x"), ("pcie_gen", "gen ")):
        present = device.state.get(key)
        highest = _usual(healthy, key) or device.state.get(f"highest_{key}")
        if present and highest and present < highest:
            evidence = f"PCIe link {letter}{present:.0f} instead of {letter}{highest:.0f}"
            hint = f"Check slot, riser and BIOS of {device.name}: nvidia-smi -q -d PCIE"
            return Cause("PCIe", evidence, hint)
    hint = "Bind the rank to the cores next to its GPU (nvidia-smi topo -m), and look for other load on the host."
    return Cause(UNKNOWN, "the PCIe link has its full width and speed", hint)


def _wrong_result(device: DeviceResult, peers: Devices) -> Cause | None:
    digests = [other.digest for other in peers if other.digest is not None]
    differs = len(digests) > 1 and len(set(digests)) == 1 and device.digest not in (None, digests[0])
    if device.repeatable and not differs:
        return None
    than = f"than the other {len(digests)}" if device.repeatable else "each time"
    hint = "Take it out of the job: it may compute wrong results silently. Run dcgmi diag -r 3 on it."
    return Cause("wrong result", f"another product of the same numbers {than}", hint)


def _errors(state: Mapping[str, Any]) -> str:
    parts = []
    if state.get("ecc_uncorrected"):
        parts.append(f"{state['ecc_uncorrected']:.0f} uncorrected ECC errors since the driver was loaded")
    if hardware := sorted(_HARDWARE_XIDS & set(state.get("xids", ()))):
        parts.append(f"Xid {', '.join(map(str, hardware))} in the kernel's log")
    return " and ".join(parts)


def _slow_pairs(results: Results, slow_ranks: set[int]) -> Iterator[Verdict]:
    """Links between two ranks that are both fast with others, where that is rare."""
    by_test: dict[str, list[PairResult]] = {}
    for pair in results.pairs:
        if not slow_ranks & set(pair.ranks):
            by_test.setdefault(results.pair_test(pair), []).append(pair)
    for test, pairs in by_test.items():
        usual = statistics.median(statistics.median(pair.rates) for pair in pairs)
        least = (1 - TESTS[test].limit) * usual
        slow = [pair for pair in pairs if _mostly_below(least, pair.rates)]
        for pair in slow if len(slow) <= _FEW_PAIRS * len(pairs) else ():
            rate = statistics.median(pair.rates)
            text = f"all_reduce between {' and '.join(results.by_rank[rank].name for rank in pair.ranks)} is "
            text += (
                f"{slower(rate / usual)} than between other pairs ({rate:.3g} instead of {usual:.3g} GB/s)"
            )
            hint = "Both are fast with other partners: check cable, switch port or NVLink between them."
            yield Verdict("warning", text, hint, tuple(pair.ranks), (test,), "link")


def _all_clear(devices: Devices, compared: bool) -> Verdict:
    """What to say where no device is slow."""
    tested = [device for device in devices if device.rates]
    ranks = tuple(device.rank for device in tested)
    if not compared:
        text = "nothing to compare with: no other device of the model, no data sheet, no baseline"
        hint = "Probe several devices together, or compare with a kept result: rankscope probe --json > base.json"
        return Verdict("info", text if tested else "no device was tested", hint, ranks)
    matmuls = [device.rate("matmul") for device in tested if "matmul" in device.rates]
    spread = f", matmuls within {100 * (1 - min(matmuls) / max(matmuls)):.0f} %" if len(matmuls) > 1 else ""
    hint = "If a rank of your job is slow, its work or its host is: rankscope stats RUN -r stragglers"
    return Verdict(OK, f"no device is slow ({len(tested)} compared{spread})", hint, ranks)
