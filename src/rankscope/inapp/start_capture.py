"""Called in every Python process of the job, by the bootstrap or by `import torch`: start a capture if this is a
selected rank.

In all other processes (workers, launchers, ranks that are not selected) nothing happens. In a selected rank the
capture engine starts once the script has imported torch.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from rankscope.capture.launcher_command import is_launcher
from rankscope.capture.plan import PLAN_VARIABLE, Plan
from rankscope.capture.rank import SINGLE, Identity, detect, disagreements
from rankscope.capture.schedule import EveryStep, OnRequest, OnSignal
from rankscope.capture.selector import parse_selector
from rankscope.errors import CaptureError, RankscopeError
from rankscope.inapp.import_hooks import (
    SPAWNED_CHILD,
    after_import,
    pass_to_spawned,
    pass_to_started_ranks,
    when_joined,
)
from rankscope.inapp.job_log import JobLog, current_identity, joined_distributed

OLDEST_TORCH = (2, 0)

# Python restores the default action of signals, then frees all modules, which with ours takes up to 30 ms longer.
_END_S = 0.1

# Python's own helper processes and torch's compile workers: children of a rank, never the rank itself.
_HELPERS = (
    SPAWNED_CHILD,
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "multiprocessing.spawn",
    "_inductor/compile_worker",
)


def start_capture(plan_json: str, bootstrap: str) -> None:
    """Decide whether to capture this process, and if so prepare for it. ``bootstrap`` is the bootstrap's folder."""
    if is_launcher(sys.orig_argv):
        return
    atexit.register(_put_timers_off)  # the first that is registered is the last that is called
    plan = Plan.from_json(plan_json)
    if _is_child(plan):
        clean_environment(bootstrap)
        return
    identity = detect(os.environ, plan.identity)
    log = _log(plan, identity)
    if identity.source == SINGLE:
        variables = {PLAN_VARIABLE: plan_json, "PYTHONPATH": os.environ.get("PYTHONPATH", bootstrap)}
        pass_to_spawned(variables)
        pass_to_started_ranks(variables)
    else:
        clean_environment(bootstrap)
    rank_plan = _plan_of_rank(plan, identity, log)
    if rank_plan is not None:
        _wait_for_torch(rank_plan, identity, log, bootstrap)
    else:
        after_import("torch", lambda: clean_environment(bootstrap))


def _put_timers_off() -> None:
    """A timer that the job leaves running would end the process more often than without us."""
    import signal

    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        left, interval = signal.getitimer(timer)
        if left:
            signal.setitimer(timer, left + _END_S, interval)


def capture_this_process(plan: Plan, identity: Identity | None = None) -> None:
    """The same without a bootstrap, in a process that has imported torch, or is at the end of importing it.

    ``identity`` is given by a framework that starts the ranks itself, before torch.distributed knows them.
    """
    if is_launcher(sys.orig_argv) or _is_child(plan):
        return
    if identity is None or joined_distributed() is not None:
        identity = current_identity()
    log = _log(plan, identity)
    rank_plan = _plan_of_rank(plan, identity, log)
    if rank_plan is not None:
        _start_engine(rank_plan, identity, log)


def _is_child(plan: Plan) -> bool:
    """Whether this is a process that a rank has started. One of multiprocessing's, or one with nothing but a local rank
    (Lightning's), may become a rank later."""
    words = sys.orig_argv
    has_local_rank = os.environ.get("LOCAL_RANK", "0") != "0" and detect(os.environ).source == SINGLE
    if SPAWNED_CHILD in words or has_local_rank:
        _capture_when_joined(plan)
        return True
    return any(helper in word for word in words for helper in _HELPERS)


def _log(plan: Plan, identity: Identity) -> JobLog:
    return JobLog(identity.rank, reports=plan.speaks, quiet=plan.quiet, verbose=plan.verbose)


def _plan_of_rank(plan: Plan, identity: Identity, log: JobLog) -> Plan | None:
    """What this rank does; None where it is not captured. With --watch all ranks keep telemetry."""
    try:
        selected = parse_selector(plan.ranks).selects(identity)
    except RankscopeError as error:
        log.warning(f"not captured, the job goes on: {error.message}. {error.hint}")
        return None
    if selected:
        return plan
    return plan._replace(when=OnRequest()) if plan.watch else None


def clean_environment(bootstrap: str) -> None:
    """The script and the processes that it starts (workers, compilers, shells) see the environment as the job made it.

    A process without a rank may be the job's own launcher: it passes the variables on until it imports torch.
    """
    os.environ.pop(PLAN_VARIABLE, None)
    path = os.environ.get("PYTHONPATH", bootstrap)
    parts = path.split(os.pathsep)
    rest = [part for part in parts if part != bootstrap]
    if rest or len(parts) > 1:  # twice the bootstrap: it was set, but empty
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)


def _capture_when_joined(plan: Plan) -> None:
    """A child that multiprocessing has spawned is a rank if it joins a process group, else a worker."""
    pid = os.getpid()
    started: list[Any] = []

    def on_group() -> None:
        if os.getpid() != pid or started:
            return
        identity = current_identity()
        log = _log(plan, identity)
        rank_plan = _plan_of_rank(plan, identity, log)
        started.append(rank_plan and _start_engine(rank_plan, identity, log))

    if "torch" in sys.modules:  # though its import has not ended
        when_joined(on_group)
    else:
        after_import("torch", lambda: when_joined(on_group))


def _wait_for_torch(plan: Plan, identity: Identity, log: JobLog, bootstrap: str) -> None:
    pid = os.getpid()
    started: list[Any] = []

    def on_torch() -> None:
        if os.getpid() == pid and not started:
            clean_environment(bootstrap)
            started.append(_start_engine(plan, identity, log))

    def at_exit() -> None:
        if os.getpid() == pid and not started and plan.direct and _script_was_found():
            _report_no_torch(plan, identity, log)

    after_import("torch", on_torch)
    atexit.register(at_exit)


def _script_was_found() -> bool:
    return sys.argv[0] in ("-c", "") or os.path.exists(sys.argv[0])  # noqa: PTH110  (pathlib may not be imported)


def _report_no_torch(plan: Plan, identity: Identity, log: JobLog) -> None:
    """Nothing is reported where a child of this process (started by the user's own launcher) was the rank, nor where
    the tool records the whole run anyway."""
    if isinstance(plan.when, EveryStep):
        return
    from rankscope.capture.rank_files import RankFiles
    from rankscope.inapp.cuda_range import CudaRangeFiles

    text = "nothing was captured: the script never imported torch"
    if failure := getattr(
        sys, "last_type", None
    ):  # its folder is left to the next attempt, and the process in front speaks
        if plan.speaks:
            log.warning(f"{text}: it ended by {failure.__name__}")
        return
    try:
        files = (CudaRangeFiles if plan.windows else RankFiles)(plan, identity, os.environ)
        files.manifest.update(state="done", notes=[text])
        files.claim()
        if plan.windows:
            files.save()
    except (RankscopeError, OSError):
        pass  # another process of this rank was captured, or the folder is gone
    else:
        log.warning(text)


def _start_engine(plan: Plan, identity: Identity, log: JobLog) -> Any:
    """Called inside the job's `import torch`, which must not fail: errors become one line."""
    try:
        import torch

        from rankscope.inapp.engine import set_engine

        version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        if version < OLDEST_TORCH:
            raise CaptureError(f"torch {torch.__version__} is too old: 2.0 is the first that can be captured")
        files, engine = _make_engine(plan, identity, log)
        engine.watch_optimizers()
        _handle_signal(engine)
        set_engine(engine)
        when_joined(lambda: engine.joined(current_identity()))
        for text in disagreements(os.environ, identity):
            files.manifest["notes"].append(text)
            log.warning(text)
        log.debug(f"capture is ready (rank from {identity.source}), will write to {files.folder}")
        return engine
    except Exception as error:  # noqa: BLE001  (inside the job's own `import torch`)
        text = f"{error.message}. {error.hint}" if isinstance(error, RankscopeError) else repr(error)
        outcome = (
            "steps are not marked" if isinstance(plan.when, EveryStep) else "not captured, the job goes on"
        )
        log.warning(f"{outcome}: {text}")
        return None


def _make_engine(plan: Plan, identity: Identity, log: JobLog) -> Any:
    """The engine with torch's profiler, or under nsys and ncu with a CUDA profiler range; and its files."""
    from rankscope.capture.rank_files import RankFiles
    from rankscope.inapp.engine import Engine

    if plan.windows is None:
        files = RankFiles(plan, identity, os.environ)
        return files, Engine(plan, files, log)
    from rankscope.inapp.cuda_range import CudaRangeFiles, CudaRangeRecorder, export_nothing

    files = CudaRangeFiles(plan, identity, os.environ)

    def warn(text: str) -> None:
        if text not in files.manifest["notes"]:
            files.manifest["notes"].append(text)
            log.warning(text)

    recorder = CudaRangeRecorder(opens_range=plan.opens_range, extra=plan.nvtx, warn=warn)
    return files, Engine(plan, files, log, [export_nothing], recorder)


def _handle_signal(engine: Any) -> None:
    """--on-signal: each signal requests a window. A handler of the script's own is not replaced."""
    when = engine.plan.when
    if not isinstance(when, OnSignal):
        return
    import signal
    import threading

    number = signal.Signals[f"SIG{when.signal}"]
    if threading.current_thread() is not threading.main_thread():
        raise CaptureError(f"--on-signal {when.signal} needs torch to be imported by the main thread")
    if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
        raise CaptureError(
            f"--on-signal {when.signal}: the script handles SIG{when.signal} itself",
            hint="Choose another signal.",
        )
    signal.signal(number, lambda *_: engine.request())
    engine.log.info(f"waiting for kill -{when.signal} {engine.files.manifest['pid']}")
