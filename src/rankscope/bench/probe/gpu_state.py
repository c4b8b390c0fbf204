"""The state of one GPU while it works: clocks, power, PCIe, ECC errors from nvidia-smi; Xid from the kernel's log."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import threading
from collections.abc import Iterable
from typing import Any

from rankscope.host import kernel_messages
from rankscope.model import REASON_BITS

State = dict[str, Any]
_COLUMNS = {
    "gpu": "index",
    "bus": "pci.bus_id",
    "sm_clock_mhz": "clocks.sm",
    "highest_sm_clock_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_w": "power.draw",
    "power_limit_w": "enforced.power.limit",
    "default_power_limit_w": "power.default_limit",
    "temperature_c": "temperature.gpu",
    "busy_pct": "utilization.gpu",
    "reasons": "clocks_event_reasons.active",
    "pcie_gen": "pcie.link.gen.current",
    "highest_pcie_gen": "pcie.link.gen.max",
    "pcie_width": "pcie.link.width.current",
    "highest_pcie_width": "pcie.link.width.max",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
    "ecc_corrected": "ecc.errors.corrected.volatile.total",
}
_FORMER = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
"""Names before driver 535."""
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
_TIMEOUT_S = 20
_LEAST_SAMPLES = 3
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")


class GpuQuery:
    """nvidia-smi, asked for one GPU again and again. Without nvidia-smi every answer is empty."""

    def __init__(self, selector: str | None) -> None:
        """``selector`` is a UUID or a number, as in nvidia-smi -i; None: this rank has no GPU."""
        self._selector = selector
        self._tool = shutil.which("nvidia-smi") if selector is not None else None
        self._columns = dict(_COLUMNS)

    def sample(self) -> State:
        """The present state; columns that this GPU or driver lacks are missing."""
        while self._tool is not None and self._columns:
            command = [
                self._tool,
                f"--id={self._selector}",
                f"--query-gpu={','.join(self._columns.values())}",
            ]
            try:
                done = subprocess.run(
                    [*command, "--format=csv,noheader,nounits"],
                    capture_output=True,
                    text=True,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired):
                break
            unknown = _UNKNOWN_FIELD.search(done.stdout + done.stderr)
            if unknown is None or unknown[1] not in self._columns.values():
                return self._parsed(done.stdout) if done.returncode == 0 else {}
            self._replace(unknown[1])
        return {}

    def _replace(self, field: str) -> None:
        """Ask for a field by its former name, or no longer."""
        key = next(key for key, name in self._columns.items() if name == field)
        if field in _FORMER:
            self._columns[key] = _FORMER[field]
        else:
            del self._columns[key]

    def _parsed(self, text: str) -> State:
        values = [value.strip() for value in text.partition("\n")[0].split(",")]
        state: State = {}
        for key, value in zip(self._columns, values, strict=False):
            if key == "bus":
                state[key] = value.lower()
            elif re.fullmatch(r"0x[0-9a-fA-F]+", value):
                state[key] = int(value, 16)
            elif re.fullmatch(r"\d+(\.\d+)?", value):
                state[key] = float(value)
        return state


class Sampling:
    """Samples in a thread, from entering to `stop`; the load should go on while it is `active`."""

    def __init__(self, query: GpuQuery) -> None:
        self.samples: list[State] = []
        self._query = query
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampling:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        self._thread.join()

    @property
    def active(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to end, with the sample that it takes, and not before the third."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set() or len(self.samples) < _LEAST_SAMPLES:
            sample = self._query.sample()
            if not sample:
                return
            self.samples.append(sample)


def summarised(samples: Iterable[State]) -> State:
    """The median of each column, the range of the SM clock, and for each throttle reason its share of the samples."""
    rows = list(samples)
    state: State = {}
    for key in _COLUMNS:
        values = [row[key] for row in rows if key in row]
        if not values or key == "reasons":
            continue
        state[key] = values[-1] if key == "bus" else statistics.median(values)
        if key == "sm_clock_mhz":
            state["sm_clock_range_mhz"] = [min(values), max(values)]
    masks = [row["reasons"] for row in rows if "reasons" in row]
    if masks:
        shares = {
            name: sum(bool(mask & bit) for mask in masks) / len(masks) for bit, name in REASON_BITS.items()
        }
        state["reasons"] = {name: share for name, share in shares.items() if share}
    return state


def xids(bus: str | None) -> list[int]:
    """The numbers of the driver's errors of this GPU since the machine started; none where its log may not be read."""
    if bus is None:
        return []
    log = "\n".join(kernel_messages(_XID, since_unix_ns=0))
    return sorted({int(number) for address, number in _XID.findall(log) if _slot(address) == _slot(bus)})


def _slot(address: str) -> list[int]:
    """A PCI address as numbers: '00000000:3B:00.0' and '0000:3b:00' are the same slot."""
    return [int(part, 16) for part in address.partition(".")[0].split(":") if part]
