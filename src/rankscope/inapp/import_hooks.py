"""Call back once a module has been imported, or once torch.distributed has given this process a rank.

The module's spec and loader stay the ones that Python finds. Ranks that a script starts itself get the plan here too:
with multiprocessing's spawn (torch.multiprocessing.spawn), or with subprocess and a rank of their own (Lightning).
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SPAWNED_CHILD = "--multiprocessing-fork"
"""In the command line of a child that multiprocessing has spawned."""
_PROCESS_GROUPS = "torch.distributed.distributed_c10d"
_SPAWN = "multiprocessing.popen_spawn_posix"


def after_import(name: str, callback: Callable[[], None]) -> None:
    """Call ``callback`` after this module's first import, or now if it is complete already."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        callback()
        return
    sys.meta_path.insert(0, _Finder(name, callback))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders would, and changes what its loader does once."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback
        self._searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            self._call_back_after(spec.loader)
        return spec

    def _call_back_after(self, loader: Any) -> None:
        """On the loader object itself, which belongs to this module alone: a wrapper would lack its other methods."""
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = original
            original(module)
            if self in sys.meta_path:  # only for the first import
                sys.meta_path.remove(self)
                self._callback()

        # Python leaves frames of this file out where an import fails
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename="<frozen importlib._bootstrap_external>"
        )
        loader.exec_module = exec_module


def when_joined(callback: Callable[[], None]) -> None:
    """Call ``callback`` when the default process group is there: now, or at the end of init_process_group.

    Not in forked children of this process.
    """
    pid = os.getpid()

    def watch() -> None:
        module: Any = sys.modules[_PROCESS_GROUPS]
        original = getattr(module, "_update_default_pg", None)
        if original is None:  # torch was built without torch.distributed
            return

        @functools.wraps(original)
        def update_default_pg(group: Any) -> None:
            original(group)
            if group is not None and os.getpid() == pid:
                callback()

        # init_process_group looks it up when it is called, also for those who have imported init_process_group itself.
        module._update_default_pg = update_default_pg
        if module.is_initialized():
            callback()

    after_import(_PROCESS_GROUPS, watch)


def pass_to_spawned(variables: Mapping[str, str]) -> None:
    """Start multiprocessing's children with these variables, which this process need not keep.

    The script's environment is clean by then (0130). Most such children are workers: one becomes a rank when it joins
    a process group.
    """

    def watch() -> None:
        popen: Any = sys.modules[_SPAWN].Popen
        original = popen._launch

        @functools.wraps(original)
        def launch(child: Any, process: Any) -> None:
            before = {name: os.environ[name] for name in variables if name in os.environ}
            os.environ.update(variables)
            try:
                original(child, process)
            finally:
                for name in variables:
                    os.environ.pop(name, None)
                os.environ.update(before)

        popen._launch = launch

    after_import(_SPAWN, watch)


def pass_to_started_ranks(variables: Mapping[str, str]) -> None:
    """Start those programs with these variables that the script gives a rank of their own."""

    def watch() -> None:
        popen: Any = sys.modules["subprocess"].Popen
        original = popen.__init__

        @functools.wraps(original)
        def start(child: Any, *args: Any, **options: Any) -> None:
            env = options.get("env")
            if env and any(env.get(name, own) != own for name, own in _own_rank()):
                options["env"] = {**env, **variables}
            original(child, *args, **options)

        popen.__init__ = start

    after_import("subprocess", watch)


def _own_rank() -> list[tuple[str, str | None]]:
    return [(name, os.environ.get(name)) for name in ("RANK", "LOCAL_RANK")]
