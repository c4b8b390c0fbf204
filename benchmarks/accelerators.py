"""Files of JAX and of Ascend's profilers of any size for benchmarks; kept in .bench for the next time.

The tests' writers make them: some steps that are repeated, each later than the one before.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from traces import ROOT, WORK, Trace

sys.path.append(str(ROOT / "tests"))

import ascend_files
from xspace_files import US, PlaneFile, Ref, environment, write_space

_DEVICES = 4
_BYTES_PER_KERNEL = 122
"""Of a kernel and its launch, in an .xplane.pb."""
_OPS = 200


def xplane(megabytes: int) -> Trace:
    """Four devices that run kernels of 200 kinds, with the stats that XLA records on GPUs."""
    kernels = megabytes * 1_000_000 // _BYTES_PER_KERNEL // _DEVICES
    path = WORK / f"jax-{megabytes}mb.xplane.pb"
    if not path.is_file():
        host = PlaneFile("/host:CPU")
        calls = host.line(12, "Host Threads/12")
        planes = [environment(), host]
        for device in range(_DEVICES):
            plane = PlaneFile(f"/device:GPU:{device}")
            stream = plane.line(7, "Stream #7(Kernel)")
            for number in range(kernels):
                stats = _stats(number)
                launch = number * _DEVICES + device + 1
                begin = number * 10 * US
                details = Ref(f" grid:{number % 40},1,1 block:256,1,1 occ_pct:0")
                stream.append(
                    plane.event(
                        f"loop_fusion_{number % _OPS}",
                        begin,
                        8 * US + number % 7,
                        correlation_id=launch,
                        kernel_details=details,
                        **stats,
                    )
                )
                calls.append(
                    host.event(
                        "cuLaunchKernelEx",
                        begin - 5 * US + device * US,
                        US,
                        correlation_id=launch,
                        device_id=device,
                        **stats,
                    )
                )
            planes.append(plane)
        write_space(path, *planes)
    return Trace(path, 2 * kernels * _DEVICES)


def _stats(number: int) -> dict[str, Any]:
    return {
        "tf_op": Ref("XlaModule:"),
        "name": Ref(f"jit(loss)/jvp()/op{number % _OPS}"),
        "hlo_op": Ref(f"fusion.{number % _OPS}"),
        "hlo_module": Ref("jit_loss"),
        "program_id": 17,
    }


def trace_view(megabytes: int) -> Trace:
    """Steps of two ops, with their launches, tasks, flows and an all-reduce."""
    path = WORK / f"ascend-{megabytes}mb" / "trace_view.json"
    size_of_step = len(json.dumps(ascend_files.events(11))) - len(json.dumps(ascend_files.events(1)))
    steps = megabytes * 10_000_000 // size_of_step
    events = ascend_files.events(1)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(ascend_files.events(steps)), encoding="utf-8")
    per_step = (len(ascend_files.events(2)) - len(events)) * steps
    return Trace(path, per_step + len(events))
