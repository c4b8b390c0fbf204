"""Large columns of one trace while its tables are made: in files without a name, so that memory can be given back."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native

_LEAST_BYTES = 16 << 20
"""Smaller columns stay in memory."""
_BLOCK_BYTES = 64 << 20
_ALIGNED = 64
_MOST_TOUCHED = 64 << 20


class Scratch:
    """Columns in the folder of a segment. Those that are not looked at for a while take no memory after `release`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._changing_maps = threading.Lock()
        self._block: NDArray[Any] = np.empty(0, np.uint8)
        """What is left of the block that small arrays are put into."""
        self._touched = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array as np.empty makes it; one that the disk has no room for is in memory."""
        count = int(np.prod(shape))
        size = count * np.dtype(dtype).itemsize
        if size < _LEAST_BYTES:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                # Without its blocks, a disk that is full would end the process when a page is written.
                os.posix_fallocate(file.fileno(), 0, size)
                pages = mmap.mmap(file.fileno(), size)
        except (OSError, AttributeError):  # the latter: not on this system
            return np.empty(shape, dtype)
        with self._changing_maps:
            self._maps.add(pages)
        return np.frombuffer(pages, dtype, count).reshape(shape)

    def moved(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same values in the file, if there are many."""
        if array.nbytes < _LEAST_BYTES or 0 in array.strides:  # the latter are equal, and take no memory
            return array
        memory: Any = array.base
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, memoryview) and isinstance(memory.obj, mmap.mmap):
            return array
        target = self.empty(array.shape, array.dtype)
        target[:] = array
        self.touch(array.nbytes)
        return target

    def packed(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same values in the file, beside those of other small arrays."""
        if not array.nbytes or 0 in array.strides:
            return array
        size = -(-array.nbytes // _ALIGNED) * _ALIGNED
        if size > len(self._block):
            self._block = self.empty((max(size, _BLOCK_BYTES),), np.uint8)
        target = self._block[: array.nbytes].view(array.dtype).reshape(array.shape)
        self._block = self._block[size:]
        target[:] = array
        self.touch(size)
        return target

    def touch(self, size: int) -> None:
        """So many bytes of columns have been read or written: give their memory back when there are many."""
        self._touched += size
        if self._touched > _MOST_TOUCHED:
            self.release()

    def release(self) -> None:
        """Give back the memory of the columns. Their values stay in the page cache, and on the disk."""
        self._touched = 0
        with self._changing_maps:
            maps = list(self._maps)
        for pages in maps:
            pages.madvise(mmap.MADV_DONTNEED)
        if maps and native.functions is not None:
            native.functions.release_memory()
