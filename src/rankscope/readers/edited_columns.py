"""Changes to the events that a JSON reader has read: formats that are Chrome traces with names of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.readers.checked_values import json_object
from rankscope.readers.columns import LINKS, NO_ARGS, NO_TEXT, NULL, Codes, EventColumns, Texts, dense


class EditedColumns:
    """Columns that are being changed. The arrays have an entry for each event; change them in place."""

    def __init__(self, columns: EventColumns) -> None:
        self._columns = columns
        self.texts = list(columns.texts)
        self._codes = {text: code for code, text in enumerate(self.texts)}
        self.phase, self.category, self.name, self.pid = (
            column.copy() for column in (columns.phase, columns.category, columns.name, columns.pid)
        )
        self.correlation, self.external_id, self.device, self.stream, self.bytes = (
            dense(columns, name) for name in LINKS
        )
        self._collective: Codes = np.full(len(columns), NO_TEXT, dtype=np.int32)
        self._collective[columns.linked] = columns.collective
        self._more_args: dict[int, bytes] = {}

    def code(self, text: str) -> int:
        if text not in self._codes:
            self._codes[text] = len(self.texts)
            self.texts.append(text)
        return self._codes[text]

    def codes_of(self, texts: Iterable[str]) -> Codes:
        return np.array([self.code(text) for text in texts], dtype=np.int32)

    def arguments(self, event: int) -> dict[str, Any]:
        return json_object(self._columns.args_of(event))

    def add_collective(self, event: int, args: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        """Metadata of a collective, under torch's names, besides the arguments that the event has."""
        self._collective[event] = self.code(str(more["Collective name"]))
        text = json.dumps({**args, **more}, ensure_ascii=False, separators=(",", ":"))
        self._more_args[event] = text.encode("utf-8", "replace")

    def found_in_args(self, pattern: Any) -> list[tuple[int, Any]]:
        """Events and matches of a pattern of bytes in their arguments, in the order of the arguments."""
        events = np.flatnonzero(self._columns.args_offset != NO_ARGS)
        begins = self._columns.args_offset[events].astype(np.int64)
        order = np.argsort(begins, kind="stable")
        matches = list(pattern.finditer(memoryview(self._columns.args)))
        starts = np.array([match.start() for match in matches], dtype=np.int64)
        if not matches:
            return []
        owners = events[order][np.searchsorted(begins[order], starts, side="right") - 1]
        return list(zip(owners.tolist(), matches, strict=True))

    def columns(self) -> EventColumns:
        """The events as they are now."""
        numbers = {name: getattr(self, name) for name in LINKS}
        linked = self._collective != NO_TEXT
        for column in numbers.values():
            linked |= column != NULL
        args, args_offset = self._args()
        sparse: dict[str, Any] = {name: column[linked] for name, column in numbers.items()}
        return replace(
            self._columns,
            texts=Texts.of(self.texts),
            phase=self.phase,
            category=self.category,
            name=self.name,
            pid=self.pid,
            args=args,
            args_offset=args_offset,
            linked=np.flatnonzero(linked).astype(np.int32),
            collective=self._collective[linked],
            **sparse,
        )

    def _args(self) -> tuple[Any, NDArray[np.uint32]]:
        """New arguments are put behind the others."""
        if not self._more_args:
            return self._columns.args, self._columns.args_offset
        offsets = self._columns.args_offset.copy()
        pieces = [bytes(self._columns.args)]
        size = len(pieces[0])
        for event, text in self._more_args.items():
            offsets[event] = size
            pieces += (len(text).to_bytes(4, "little"), text)
            size += 4 + len(text)
        return b"".join(pieces), offsets
