"""A pickle as columns: the value of one key in many dictionaries, the members of many lists; no object for each.

The part in C keeps a pickle in about as many bytes as the file has, and reads it in pieces. Without it, Python's
unpickler makes the objects, and this module asks them the same questions. Neither can run anything in the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

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
"""Some values of the pickle; what an entry is depends on the tree."""
_PIECE = 1 << 22
_NUMBER, _TEXT, _LIST, _DICT, _FLOAT = range(1, 6)
_KINDS = {_NUMBER: "int", _TEXT: "str", _LIST: "list", _FLOAT: "float"}
_MORE, _DONE, _REFUSED = range(3)


class PickledTree(Protocol):
    """The values of one pickle."""

    size: int
    """Of the pickle in bytes, when unpacked."""
    root: Values
    """The dictionary that the pickle is: one value."""
    read_by: str
    """As in EventColumns."""

    def fields(self, values: Values, key: str) -> Values:
        """For each value that of a key in it; nothing where it has none, or is not a dictionary."""

    def are_dicts(self, values: Values) -> NDArray[np.bool_]: ...

    def lengths(self, values: Values) -> Numbers:
        """Of lists and tuples; -1 for anything else."""

    def contents(self, values: Values) -> Numbers:
        """Lists with the same number have the same members."""

    def identities(self, values: Values) -> list[int]:
        """Values with the same number are the same one."""

    def members(self, values: Values) -> Values:
        """The members of these lists, one after the other."""

    def numbers(self, values: Values) -> Numbers:
        """NULL for what is not a whole number of 64 bits."""

    def plain(self, values: Values) -> list[Any]:
        """Numbers, booleans and texts, the longest shortened; None for anything else."""

    def coded(self, values: Values) -> tuple[Codes, list[Any]]:
        """As `plain`, each distinct value once: the place of each in the list."""

    def pairs(self, value: Values) -> tuple[list[Any], Values]:
        """The keys and the values of one dictionary."""


class _TreeInC:
    read_by = IN_C

    def __init__(self, path: Path) -> None:
        self._tree = native.functions.pickled_tree()
        self.size = _feed(self._tree, path)
        self.root: Values = np.array([native.functions.pickled_root(self._tree)], dtype=np.uint32)
        if not self.are_dicts(self.root)[0]:
            kind = int(self._kinds(self.root)[0])
            raise not_a_dictionary(path, _KINDS.get(kind, "value of another kind"))

    def fields(self, values: Values, key: str) -> Values:
        return np.frombuffer(native.functions.pickled_fields(self._tree, values, key.encode()), np.uint32)

    def are_dicts(self, values: Values) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._kinds(values) == _DICT
        return found

    def _kinds(self, values: Values) -> NDArray[np.uint8]:
        return np.frombuffer(native.functions.pickled_kinds(self._tree, values), np.uint8)

    def lengths(self, values: Values) -> Numbers:
        return np.frombuffer(native.functions.pickled_lengths(self._tree, values)[0], np.int64)

    def contents(self, values: Values) -> Numbers:
        return np.frombuffer(native.functions.pickled_lengths(self._tree, values)[1], np.int64)

    def identities(self, values: Values) -> list[int]:
        found: list[int] = values.tolist()
        return found

    def members(self, values: Values) -> Values:
        return np.frombuffer(native.functions.pickled_members(self._tree, values), np.uint32)

    def numbers(self, values: Values) -> Numbers:
        return np.frombuffer(native.functions.pickled_numbers(self._tree, values), np.int64)

    def plain(self, values: Values) -> list[Any]:
        found = native.functions.pickled_values(self._tree, values, 4 * LONGEST_TEXT)
        return [one[:LONGEST_TEXT] if isinstance(one, str) else one for one in found]

    def coded(self, values: Values) -> tuple[Codes, list[Any]]:
        distinct, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int32), self.plain(distinct)

    def pairs(self, value: Values) -> tuple[list[Any], Values]:
        found = np.frombuffer(native.functions.pickled_pairs(self._tree, value), np.uint32)
        return self.plain(np.ascontiguousarray(found[0::2])), np.ascontiguousarray(found[1::2])


class _TreeOfObjects:
    read_by = IN_PYTHON

    def __init__(self, path: Path) -> None:
        root, self.size = load_plain(path)
        self.root = _objects([root])
        self._by_list: dict[int, int] = {}
        self._by_members: dict[tuple[int, ...], int] = {}

    def fields(self, values: Values, key: str) -> Values:
        return _objects(value.get(key) if isinstance(value, dict) else None for value in values)

    def are_dicts(self, values: Values) -> NDArray[np.bool_]:
        return np.fromiter((isinstance(value, dict) for value in values), bool, len(values))

    def lengths(self, values: Values) -> Numbers:
        return np.fromiter((len(value) if _is_list(value) else -1 for value in values), np.int64, len(values))

    def contents(self, values: Values) -> Numbers:
        return np.fromiter((self._content(value) for value in values), np.int64, len(values))

    def _content(self, value: Any) -> int:
        """Members are shared objects too, so their ids identify a list without comparing contents."""
        if not _is_list(value):
            return -1
        if id(value) not in self._by_list:
            members = tuple(map(id, value))
            self._by_list[id(value)] = self._by_members.setdefault(members, len(self._by_members))
        return self._by_list[id(value)]

    def identities(self, values: Values) -> list[int]:
        return list(map(id, values))

    def members(self, values: Values) -> Values:
        return _objects(member for value in values if _is_list(value) for member in value)

    def numbers(self, values: Values) -> Numbers:
        found = (integer(value) for value in values)
        return np.fromiter((NULL if one is None else one for one in found), np.int64, len(values))

    def plain(self, values: Values) -> list[Any]:
        return [value if isinstance(value, (int, float)) else text(value) for value in values]

    def coded(self, values: Values) -> tuple[Codes, list[Any]]:
        pool: dict[Any, int] = {}
        codes = [
            pool.setdefault((type(one), one), len(pool)) for one in self.plain(values)
        ]  # True and 1 are equal
        return np.array(codes, dtype=np.int32), [one for _, one in pool]

    def pairs(self, value: Values) -> tuple[list[Any], Values]:
        return self.plain(_objects(value[0])), _objects(value[0].values())


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _objects(values: Iterable[Any]) -> Values:
    return np.fromiter(values, dtype=object)


def read_tree(path: Path) -> PickledTree:
    """The dictionary in a file. Raises ReadError for anything else, and for what contains more than data."""
    return _TreeOfObjects(path) if native.functions is None else _TreeInC(path)


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
