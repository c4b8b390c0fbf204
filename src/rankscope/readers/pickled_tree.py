"""A pickle as columns: the value of one key in many dictionaries, the members of many lists; no object for each.

The part in C keeps a large pickle in files without a name, and reads it in pieces. Without it, Python's unpickler makes
the objects, which answer the same questions. Neither can run anything in the file.
"""

from __future__ import annotations

import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.readers.byte_stream import open_stream
from rankscope.readers.checked_values import LONGEST_TEXT, integer, text
from rankscope.readers.columns import IN_C, IN_PYTHON, NULL, Codes, Numbers
from rankscope.readers.safe_pickle import (
    LARGEST_CONTENT,
    RefusedError,
    load_plain,
    memory_limit,
    not_a_dictionary,
    reading_pickle,
)

Values = NDArray[Any]
"""Some values of the pickle."""
_PIECE = 1 << 22
_NUMBER, _TEXT, _LIST, _DICT, _FLOAT = range(1, 6)
_KINDS = {_NUMBER: "int", _TEXT: "str", _LIST: "list", _FLOAT: "float"}
_LISTS = (list, tuple)
_MORE, _DONE, _REFUSED = range(3)


class PickledTree:
    """The values of one pickle. A value is a number; equal texts and numbers have the same one."""

    read_by = IN_C
    """As in EventColumns."""

    def __init__(self, path: Path) -> None:
        self._tree = native.functions.pickled_tree(tempfile.gettempdir())
        self.size = _feed(self._tree, path)
        """Of the pickle in bytes, when unpacked."""
        self.root: Values = np.array([native.functions.pickled_root(self._tree)], dtype=np.uint32)
        """The dictionary that the pickle is: one value."""
        if not self.are_dicts(self.root)[0]:
            kind = self._kinds(self.root)[0]
            raise not_a_dictionary(path, _KINDS.get(int(kind), "value of another kind"))

    def fields(self, values: Values, key: str) -> Values:
        """For each value that of a key in it; nothing where it has none, or is not a dictionary."""
        return np.frombuffer(native.functions.pickled_fields(self._tree, values, key.encode()), np.uint32)

    def are_dicts(self, values: Values) -> NDArray[np.bool_]:
        are_dicts: NDArray[np.bool_] = self._kinds(values) == _DICT
        return are_dicts

    def _kinds(self, values: Values) -> NDArray[np.uint8]:
        return np.frombuffer(native.functions.pickled_kinds(self._tree, values), np.uint8)

    def lengths(self, values: Values) -> Numbers:
        """Of lists and tuples; -1 for anything else."""
        return np.frombuffer(native.functions.pickled_lengths(self._tree, values)[0], np.int64)

    def contents(self, values: Values) -> Numbers:
        """Lists with the same number have the same members."""
        return np.frombuffer(native.functions.pickled_lengths(self._tree, values)[1], np.int64)

    def members(self, values: Values) -> Values:
        """The members of these lists, one after the other."""
        return np.frombuffer(native.functions.pickled_members(self._tree, values), np.uint32)

    def numbers(self, values: Values) -> Numbers:
        """NULL for what is not a whole number of 64 bits."""
        return np.frombuffer(native.functions.pickled_numbers(self._tree, values), np.int64)

    def plain(self, values: Values) -> list[Any]:
        """Numbers, booleans and texts, the longest shortened; None for anything else."""
        plain = native.functions.pickled_values(self._tree, values, 4 * LONGEST_TEXT)
        return [value[:LONGEST_TEXT] if isinstance(value, str) else value for value in plain]

    def coded(self, values: Values) -> tuple[Codes, list[Any]]:
        """As `plain`, each distinct value once: the place of each in the list."""
        distinct, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int32), self.plain(distinct)

    def pairs(self, value: Values) -> tuple[list[Any], Values]:
        """The keys and the values of one dictionary."""
        pairs = np.frombuffer(native.functions.pickled_pairs(self._tree, value), np.uint32)
        return self.plain(np.ascontiguousarray(pairs[0::2])), np.ascontiguousarray(pairs[1::2])


class _UnpickledTree(PickledTree):
    """Without the part in C: objects that an unpickler made which refuses all but data. A value is the id of one."""

    read_by = IN_PYTHON

    def __init__(self, path: Path) -> None:
        root, self.size = load_plain(path)
        self._objects: dict[int, Any] = {}
        self._contents: dict[int, int] = {}
        self._of_members: dict[tuple[int, ...], int] = {}
        self.root = self._values([root])

    def _values(self, objects: list[Any]) -> Values:
        ids = [*map(id, objects)]
        self._objects.update(zip(ids, objects, strict=True))
        return np.array(ids, np.int64)

    def _at(self, values: Values) -> list[Any]:
        return [*map(self._objects.__getitem__, values.tolist())]

    def fields(self, values: Values, key: str) -> Values:
        return self._values([item.get(key) if type(item) is dict else None for item in self._at(values)])

    def are_dicts(self, values: Values) -> NDArray[np.bool_]:
        return np.array([type(item) is dict for item in self._at(values)], bool)

    def lengths(self, values: Values) -> Numbers:
        return np.array([len(item) if type(item) in _LISTS else -1 for item in self._at(values)], np.int64)

    def contents(self, values: Values) -> Numbers:
        for value in set(values.tolist()) - self._contents.keys():
            if type(item := self._objects[value]) in _LISTS:
                members = tuple(map(id, item))
                self._contents[value] = self._of_members.setdefault(members, len(self._of_members))
        return np.array([self._contents.get(value, -1) for value in values.tolist()], np.int64)

    def members(self, values: Values) -> Values:
        return self._values([*chain.from_iterable(item for item in self._at(values) if type(item) in _LISTS)])

    def numbers(self, values: Values) -> Numbers:
        numbers = map(integer, self._at(values))
        return np.array([NULL if number is None else number for number in numbers], np.int64)

    def plain(self, values: Values) -> list[Any]:
        return [item if isinstance(item, (int, float)) else text(item) for item in self._at(values)]

    def pairs(self, value: Values) -> tuple[list[Any], Values]:
        (pairs,) = self._at(value)
        return self.plain(self._values([*pairs])), self._values([*pairs.values()])


def read_tree(path: Path) -> PickledTree:
    """The dictionary in a file. Raises ReadError for anything else, and for what contains more than data."""
    return _UnpickledTree(path) if native.functions is None else PickledTree(path)


def _feed(tree: Any, path: Path) -> int:
    """Give a file to the part in C piece by piece; returns its size when unpacked."""
    stream = open_stream(path)
    buffer = bytearray(_PIECE)
    filled = size = 0
    try:
        with reading_pickle(path, stream), memory_limit(path.stat().st_size):
            while True:
                if filled == len(buffer):  # a text that is longer
                    buffer += bytes(len(buffer))
                count = stream.read_into(memoryview(buffer)[filled:])
                size, filled = size + count, filled + count
                if size > LARGEST_CONTENT:
                    raise RefusedError(f"it is larger than {LARGEST_CONTENT >> 30} GiB when unpacked")
                with memoryview(buffer) as view:
                    consumed, state, why = native.functions.pickled_feed(tree, view[:filled])
                if state == _DONE:
                    return size
                if state == _REFUSED:
                    raise RefusedError(why)
                if state != _MORE or not count:
                    raise ValueError(why or "it ends in the middle of its data")
                buffer[: filled - consumed] = buffer[consumed:filled]
                filled -= consumed
    finally:
        stream.close()
