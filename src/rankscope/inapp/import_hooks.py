"""Call back once a module has been imported. The module's spec and loader stay the ones that Python finds."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


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

        loader.exec_module = exec_module
