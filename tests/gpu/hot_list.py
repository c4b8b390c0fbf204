"""hot_list.py TRACE TOP OUT: what `rankscope ncu RUN --top TOP --kernels-out OUT` writes.

With the standard library only, for machines with a GPU but without duckdb.
"""

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

from rankscope.capture.kernel_list import HotKernel, KernelList, function_name, write_kernels
from rankscope.capture.ncu_selection import expected_launches, select
from rankscope.tools import NCU_NEVER, Launch

trace, top, out = sys.argv[1:]
events = json.loads(gzip.decompress(Path(trace).read_bytes()))["traceEvents"]
called = {
    event["args"]["correlation"]: event["ts"]
    for event in events
    if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
}
never = NCU_NEVER.split("|")
launches = sorted(
    (called.get(event["args"]["correlation"], event["ts"]), event["dur"], event["name"], event["args"])
    for event in events
    if event.get("cat") == "kernel" and not any(word in event["name"] for word in never)
)
totals = defaultdict(list)
for _, duration, name, args in launches:
    totals[Launch(name, tuple(args["grid"]), tuple(args["block"]))].append(round(duration * 1000))
kernels = sorted(
    (HotKernel(*one, len(times), sum(times)) for one, times in totals.items()), key=lambda k: -k.total_ns
)
kernels = kernels[: int(top)]
steps = sorted(
    (event["ts"], event["ts"] + event["dur"], int(event["name"].partition("#")[2]))
    for event in events
    if str(event.get("name")).startswith("ProfilerStep#") and event.get("cat") == "user_annotation"
)
start, end, step = steps[0] if steps else (0, float("inf"), None)
functions = {function_name(kernel.name) for kernel in kernels}
order = [
    Launch(name, tuple(args["grid"]), tuple(args["block"]))
    for time, _, name, args in launches
    if start <= time <= end and function_name(name) in functions
]
listed = KernelList(tuple(kernels), step, tuple(order))
write_kernels(Path(out), listed, trace)
chosen = select(listed, None, by_size=True)
print(f"step {step}, {len(order)} launches of {len(functions)} functions; ncu: {chosen.options()}")
print(f"expected: {expected_launches(chosen, listed.order)} launches")
