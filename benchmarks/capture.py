"""What capture costs, as ratios of one run: start-up, an armed and a recorded step, the stall of a window.

Runs on any machine with torch and the standard library, with CUDA or without:

    PYTHONPATH=src python3 benchmarks/capture.py [--steps 60] [--json FILE] [options of examples/gpt_train.py]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "gpt_train.py"
PROFILE = [sys.executable, "-m", "rankscope", "profile"]
# The recorded steps, for rankscope and for torch.profiler alike.
FIRST, LAST = 10, 39
ROUNDS = 3


def environment() -> dict[str, str]:
    path = os.pathsep.join(part for part in (str(ROOT / "src"), os.environ.get("PYTHONPATH")) if part)
    return {**os.environ, "PYTHONPATH": path}


def best_seconds(words: list[str], repeats: int = 20) -> float:
    """The quickest of some runs: start-up has a floor, and noise only adds to it."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(words, check=True, env=environment(), stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return min(times)


def measure_startup() -> dict[str, float]:
    python = best_seconds([sys.executable, "-c", "pass"])
    plain = best_seconds(["true"])
    wrapped = best_seconds([*PROFILE, "--rank", "1", "--ranks", "0", "true"])
    return {
        "python_ms": 1000 * python,
        "over_plain_exec_ms": 1000 * (wrapped - plain),
        "ratio_to_python": (wrapped - plain) / python,
    }


def run_script(prefix: list[str], steps: int, extra: list[str], folder: Path) -> list[float]:
    timings = folder / "timings.json"
    words = [*prefix, sys.executable, str(SCRIPT), "--steps", str(steps), "--timings", str(timings), *extra]
    subprocess.run(words, check=True, env=environment(), stdout=subprocess.DEVNULL, cwd=folder)
    seconds: list[float] = json.loads(timings.read_text())
    return seconds


def measure_steps(steps: int, extra: list[str], folder: Path) -> dict[str, Any]:
    """A step's time off, armed (waiting for a window that never comes) and recording.

    The tenth percentile over all rounds: what else runs on the machine only ever adds.
    """
    taken: dict[str, list[float]] = {"off": [], "armed": [], "active": []}
    windows = []
    for turn in range(ROUNDS):  # in turns, so that a machine that slows down slows all three
        out = folder / f"run{turn}"
        armed = [*PROFILE, "-q", "-o", str(folder / f"armed{turn}"), "--steps", "1000000:1000001"]
        active = [*PROFILE, "-q", "-o", str(out), "--steps", f"{FIRST}:{LAST}"]
        for name, prefix in (("off", []), ("armed", armed), ("active", active)):
            seconds = run_script(prefix, steps, extra, folder)
            taken[name] += seconds[FIRST + 1 : LAST] if name == "active" else seconds[5:]
        windows.append(json.loads((out / "rank-00000.rankscope.json").read_text())["windows"][0])
    best = {name: statistics.quantiles(values, n=10)[0] for name, values in taken.items()}
    window = min(windows, key=lambda one: int(one["stall_ns"]))
    return {
        **{f"{name}_ms": 1000 * value for name, value in best.items()},
        "armed_over_off_pct": 100 * (best["armed"] / best["off"] - 1),
        "active_over_off_pct": 100 * (best["active"] / best["off"] - 1),
        "stop_ms": window["stop_ns"] / 1e6,
        "export_stall_ms": (window["stall_ns"] - window["stop_ns"]) / 1e6,
        "trace_mb": window["raw_bytes"] / 1e6,
        "file_mb": window["bytes"] / 1e6,
    }


def measure_hook() -> float:
    """Seconds that an armed rank adds to one optimizer step: the hook itself, called as from torch's."""
    sys.path.insert(0, str(ROOT / "src"))
    import torch

    from rankscope.capture.plan import Plan
    from rankscope.capture.rank import detect
    from rankscope.capture.rank_files import RankFiles
    from rankscope.capture.schedule import steps_window
    from rankscope.inapp.engine import Engine
    from rankscope.inapp.job_log import JobLog

    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(when=steps_window("1000000:1000001"), output=f"{folder}/run", fallback_after_s=0)
        engine = Engine(plan, RankFiles(plan, detect({}), {}), JobLog(0, reports=False))
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        engine.step()
        frame = sys._getframe()
        calls = 100_000
        began = time.perf_counter()
        for _ in range(calls):
            engine.optimizer_stepped(optimizer, frame)
        return (time.perf_counter() - began) / calls


def reference(words: list[str]) -> None:
    """The same steps under torch.profiler itself: how long its stop and its export hold the script."""
    import torch

    spec = importlib.util.spec_from_file_location("gpt_train", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    profiler = torch.profiler._KinetoProfile()
    taken = {}

    def after_step(step: int) -> None:
        if step == FIRST - 2:
            profiler.prepare_trace()
        elif step == FIRST - 1:
            profiler.start_trace()
        elif step == LAST:
            for name, call in (
                ("stop_ms", profiler.stop_trace),
                ("export_chrome_trace_ms", lambda: profiler.export_chrome_trace("reference.json")),
            ):
                began = time.perf_counter()
                call()
                taken[name] = 1000 * (time.perf_counter() - began)

    script.train(script.parse_args(words), after_step)
    Path("reference_times.json").write_text(json.dumps(taken))


def measure_reference(steps: int, extra: list[str], folder: Path) -> dict[str, float]:
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        words = [sys.executable, __file__, "--reference", "--steps", str(steps), *extra]
        subprocess.run(words, check=True, env=environment(), stdout=subprocess.DEVNULL, cwd=folder)
        for name, value in json.loads((folder / "reference_times.json").read_text()).items():
            best[name] = min(value, best.get(name, value))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--reference", action="store_true", help=argparse.SUPPRESS)
    args, extra = (
        parser.parse_known_args()
    )  # what is left goes to the training script: --layers 24 --device cpu
    if args.reference:
        reference(["--steps", str(args.steps), *extra])
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures: dict[str, Any] = {"startup": measure_startup()}
        figures["steps"] = measure_steps(args.steps, extra, folder)
        figures["torch_profiler"] = measure_reference(args.steps, extra, folder)
    hook = measure_hook()
    steps = figures["steps"]
    figures["hook_us"] = 1e6 * hook
    figures["hook_pct_of_step"] = 100 * hook / (steps["off_ms"] / 1000)
    export = figures["torch_profiler"]["export_chrome_trace_ms"]
    figures["export_stall_over_export_chrome_trace"] = steps["export_stall_ms"] / export
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))
    print(
        f"start-up of an unselected rank: {figures['startup']['over_plain_exec_ms']:.0f} ms over plain exec, "
        f"{figures['startup']['ratio_to_python']:.1f}x `python3 -c pass`\n"
        f"step: off {steps['off_ms']:.2f} ms, armed {steps['armed_over_off_pct']:+.2f} % "
        f"(the hook itself: {figures['hook_us']:.2f} µs, {figures['hook_pct_of_step']:.4f} %), "
        f"recording {steps['active_over_off_pct']:+.1f} %\n"
        f"stall at the end of {LAST - FIRST + 1} steps ({steps['trace_mb']:.1f} MB): "
        f"stop {steps['stop_ms']:.0f} ms (torch's own), export {steps['export_stall_ms']:.1f} ms, "
        f"against {export:.0f} ms of export_chrome_trace: "
        f"{figures['export_stall_over_export_chrome_trace']:.3f}x"
    )


if __name__ == "__main__":
    main()
