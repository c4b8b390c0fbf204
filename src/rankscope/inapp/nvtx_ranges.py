"""NVTX ranges: through torch, else the nvtx package, else the library that nsys names in the environment.

A CPU build of torch has no NVTX functions, and few jobs have the nvtx package. nsys sets NVTX_INJECTION64_PATH to the
library that records ranges; NVTX is a protocol by which a program hands its table of functions to that library.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

_LIBRARY_VARIABLE = "NVTX_INJECTION64_PATH"

# The protocol's numbers (NVTX 3): export tables, the two modules of functions that nsys wants to fill, their size, and
# the places of the functions used here in the first.
_CALLBACKS, _VERSION_INFO = 1, 3
_CORE, _DOMAINS = 1, 5
_FUNCTIONS = 16
_RANGE_START, _RANGE_END, _RANGE_PUSH, _RANGE_POP = 5, 7, 9, 11


class Nvtx(NamedTuple):
    """The functions of NVTX. Pushed ranges nest on their thread; started ones may cross anything."""

    push: Callable[[str], object]
    pop: Callable[[], object]
    start: Callable[[str], Any]
    end: Callable[[Any], object]


@functools.cache
def find_nvtx() -> Nvtx | None:
    """NVTX in this process, once torch has been imported; None where there is none."""
    import torch

    if hasattr(torch._C, "_nvtx"):
        nvtx = torch.cuda.nvtx
        return Nvtx(nvtx.range_push, nvtx.range_pop, nvtx.range_start, nvtx.range_end)
    try:
        import nvtx as package
    except ImportError:
        return _from_library(os.environ.get(_LIBRARY_VARIABLE))
    return Nvtx(package.push_range, package.pop_range, package.start_range, package.end_range)


def _from_library(path: str | None) -> Nvtx | None:
    """The functions that the tool's library puts into our table; None where it cannot be used."""
    if not path:
        return None
    import ctypes

    class Callbacks(ctypes.Structure):
        _fields_ = (("size", ctypes.c_size_t), ("get_table", ctypes.c_void_p))

    class VersionInfo(ctypes.Structure):
        _fields_ = (
            ("size", ctypes.c_size_t),
            ("version", ctypes.c_uint32),
            ("reserved", ctypes.c_uint32),
            ("set_version", ctypes.c_void_p),
        )

    functions = {}
    tables = {}
    for module in (_CORE, _DOMAINS):
        functions[module] = (ctypes.c_void_p * _FUNCTIONS)()
        tables[module] = (ctypes.c_void_p * (_FUNCTIONS + 1))()
        for number in range(1, _FUNCTIONS):
            offset = number * ctypes.sizeof(ctypes.c_void_p)
            tables[module][number] = ctypes.addressof(functions[module]) + offset

    def get_table(module: int, table_out: int, size_out: int) -> int:
        if module not in tables:
            return 0
        if size_out:
            ctypes.c_uint.from_address(size_out).value = _FUNCTIONS
        if table_out:
            ctypes.c_void_p.from_address(table_out).value = ctypes.addressof(tables[module])
        return 1

    def export_table(number: int) -> int | None:
        table = {_CALLBACKS: callbacks, _VERSION_INFO: version}.get(number)
        return None if table is None else ctypes.addressof(table)

    c_get_table = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(get_table)
    c_set_version = ctypes.CFUNCTYPE(None, ctypes.c_uint32)(lambda _version: None)
    c_export_table = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(export_table)
    callbacks = Callbacks(ctypes.sizeof(Callbacks), ctypes.cast(c_get_table, ctypes.c_void_p))
    version = VersionInfo(ctypes.sizeof(VersionInfo), 3, 0, ctypes.cast(c_set_version, ctypes.c_void_p))
    # The library keeps pointers into these.
    _keep_alive.extend((functions, tables, c_get_table, c_set_version, c_export_table, callbacks, version))
    try:
        accepted = ctypes.CDLL(path).InitializeInjectionNvtx2(c_export_table)
    except (OSError, AttributeError):
        return None
    start, end, push, pop = (
        functions[_CORE][number] for number in (_RANGE_START, _RANGE_END, _RANGE_PUSH, _RANGE_POP)
    )
    if not (accepted and start and end and push and pop):
        return None
    range_start = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_char_p)(start)
    range_push = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)(push)
    return Nvtx(
        push=lambda name: range_push(name.encode()),
        pop=ctypes.CFUNCTYPE(ctypes.c_int)(pop),
        start=lambda name: range_start(name.encode()),
        end=ctypes.CFUNCTYPE(None, ctypes.c_uint64)(end),
    )


_keep_alive: list[Any] = []


class OpRanges:
    """--nvtx ops: torch's own NVTX range for every operator, on this thread and on those of the backward pass."""

    def __init__(self) -> None:
        import torch

        self._emit = torch.autograd.profiler.emit_nvtx()

    def begin(self) -> None:
        self._emit.__enter__()

    def end(self) -> None:
        self._emit.__exit__(None, None, None)


class ModuleRanges:
    """--nvtx modules: a range for the forward pass of every module, named by its path and class."""

    def __init__(self, nvtx: Nvtx) -> None:
        import torch

        self._nvtx = nvtx
        # Dynamo evaluates this, so that the hooks add nothing to a compiled graph.
        self._is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = []

    def begin(self) -> None:
        from torch.nn.modules import module

        # The one that torch 2.0 lacks comes first: then neither is there.
        self._handles = [
            module.register_module_forward_hook(self._after, always_call=True),
            module.register_module_forward_pre_hook(self._before),
        ]

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, module: Any, _args: Any) -> None:
        if not self._is_compiling():
            self._nvtx.push(self._name(module))

    def _after(self, _module: Any, _args: Any, _result: Any) -> None:
        if not self._is_compiling():
            self._nvtx.pop()

    def _name(self, module: Any) -> str:
        """The outermost module is called first and knows the paths of the others."""
        try:
            if module not in self._names:
                for path, child in module.named_modules():
                    self._names[child] = f"{path or 'model'}: {type(child).__name__}"
            return self._names[module]
        except Exception:  # noqa: BLE001  (this runs inside the job's forward pass, on classes of any kind)
            return type(module).__name__
