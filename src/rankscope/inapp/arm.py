"""Called by the bootstrap in every Python process of the job: is this a wanted rank's main process?

If not, nothing happens at all. If so, wait for torch, then start the engine.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rankscope.capture.launcher_command import is_launcher
from rankscope.capture.plan import MAIN_VARIABLE, PLAN_VARIABLE, Plan
from rankscope.capture.rank import SINGLE, Identity, detect, disagreements
from rankscope.capture.selector import parse_selector
from rankscope.errors import CaptureError, RankscopeError
from rankscope.inapp.job_log import Voice

OLDEST_TORCH = (2, 4)

# Python's own helpers and torch's compile workers: children of a rank, never the rank.
_HELPERS = (
    "--multiprocessing-fork",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "multiprocessing.spawn",
    "_inductor/compile_worker",
)


def arm(plan_json: str, bootstrap: str) -> None:
    """Decide, and arm this process if it is one to capture."""
    words = sys.orig_argv
    if any(helper in word for word in words for helper in _HELPERS) or is_launcher(words):
        return
    plan = Plan.from_json(plan_json)
    identity = detect(os.environ, plan.identity)
    if identity.source == SINGLE and MAIN_VARIABLE in os.environ:
        return
    selector = parse_selector(plan.ranks)
    voice = Voice(
        identity.rank,
        speaks=plan.speaks and identity.rank == 0,
        quiet=plan.quiet,
        verbose=plan.verbose,
    )
    if identity.source != SINGLE:
        _clean_environment(bootstrap)
    try:
        selected = selector.selects(identity)
    except RankscopeError as error:
        voice.fail(f"not captured, the job goes on: {error.message}. {error.hint}")
        return
    if selected:
        _wait_for_torch(plan, identity, voice)


def _clean_environment(bootstrap: str) -> None:
    """A rank is found: what it starts (workers, compilers) shall see the environment as the job made it."""
    os.environ.pop(PLAN_VARIABLE, None)
    rest = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part != bootstrap]
    if any(rest):
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)


def _wait_for_torch(plan: Plan, identity: Identity, voice: Voice) -> None:
    pid = os.getpid()
    armed: list[Any] = []

    def on_torch() -> None:
        if os.getpid() == pid and not armed:
            if identity.source == SINGLE:
                os.environ[MAIN_VARIABLE] = str(pid)
            armed.append(_start_engine(plan, identity, voice))

    def at_exit() -> None:
        if os.getpid() == pid and not armed and plan.direct:
            _say_no_torch(plan, identity, voice)

    sys.meta_path.insert(0, _TorchWatcher(on_torch))
    atexit.register(at_exit)


def _say_no_torch(plan: Plan, identity: Identity, voice: Voice) -> None:
    """Unless a child of this process was the rank (a launcher of the user's own)."""
    from rankscope.capture.rank_files import RankFiles
    from rankscope.inapp.cuda_range_windows import RangeFiles

    text = "nothing was captured: the script never imported torch"
    try:
        files = (RangeFiles if plan.windows else RankFiles)(plan, identity, os.environ)
        files.manifest.update(state="done", notes=[text])
        files.claim()
        if plan.windows:
            files.save()
    except RankscopeError:
        return
    voice.fail(text)


def _start_engine(plan: Plan, identity: Identity, voice: Voice) -> Any:
    """Whatever fails here is one line; the import of torch that called us goes on."""
    try:
        import torch

        from rankscope.inapp.current_engine import set_engine
        from rankscope.inapp.signals import listen

        version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        if version < OLDEST_TORCH:
            raise CaptureError(f"torch {torch.__version__} is too old: 2.4 is the first that can be captured")
        files, engine = _engine(plan, identity, voice)
        files.manifest["torch"] = torch.__version__
        engine.watch_optimizers()
        listen(engine)
        set_engine(engine)
        atexit.register(engine.finish)
        for text in disagreements(os.environ, identity):
            files.manifest["notes"].append(text)
            voice.fail(text)
        voice.detail(f"armed (rank from {identity.source}), will write to {files.folder}")
        return engine
    except Exception as error:  # noqa: BLE001  (inside the job's own `import torch`)
        text = f"{error.message}. {error.hint}" if isinstance(error, RankscopeError) else repr(error)
        voice.fail(f"not captured, the job goes on: {text}")
        return None


def _engine(plan: Plan, identity: Identity, voice: Voice) -> Any:
    """What counts the steps, with torch's profiler in it or, under nsys and ncu, their range."""
    from rankscope.capture.rank_files import RankFiles
    from rankscope.inapp.engine import Engine

    if plan.windows is None:
        files = RankFiles(plan, identity, os.environ)
        return files, Engine(plan, files, voice)
    from rankscope.inapp.cuda_range_windows import RangeFiles, RangeRecorder, nothing_to_export

    files = RangeFiles(plan, identity, os.environ)
    return files, Engine(plan, files, voice, [nothing_to_export], RangeRecorder())


class _TorchWatcher(importlib.abc.MetaPathFinder):
    """Finds torch as the others would, and calls back once it has been imported."""

    def __init__(self, on_torch: Callable[[], None]) -> None:
        self._on_torch = on_torch
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _CallBack(spec.loader, self._on_torch)
        return spec


class _CallBack(importlib.abc.Loader):
    """A loader that does what the real one does, then calls back."""

    def __init__(self, loader: Any, on_loaded: Callable[[], None]) -> None:
        self._loader = loader
        self._on_loaded = on_loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._on_loaded()
