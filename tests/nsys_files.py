"""Small nsys exports made on the spot: the tables a test needs, with the columns it wants."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAIN = (1 << 48) | (500 << 24)
"""globalPid of process 500; its main thread's globalTid is MAIN + 500."""


def thread(pid: int = 500, tid: int | None = None) -> int:
    return (1 << 48) | (pid << 24) | (pid if tid is None else tid)


class ExportFile:
    """Writes one sqlite file table by table; strings get ids as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path)
        self._strings: dict[str | bytes, int] = {}
        self._connection.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT)")

    def string(self, text: str | bytes) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self._connection.execute(
                "INSERT INTO StringIds VALUES (?, CAST(? AS TEXT))", (self._strings[text], text)
            )
        return self._strings[text]

    def table(self, name: str, columns: str, rows: Sequence[Sequence[Any]]) -> ExportFile:
        self._connection.execute(f"CREATE TABLE {name} ({', '.join(columns.split())})")
        marks = ", ".join("?" * len(columns.split()))
        self._connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        return self

    def kernel(self, name: str, start: int, end: int, correlation: int = 0, pid: int = 500) -> ExportFile:
        """One kernel on stream 7 of device 0, with only the columns every version has."""
        columns = "start end deviceId contextId streamId correlationId globalPid demangledName"
        if not self._exists("CUPTI_ACTIVITY_KIND_KERNEL"):
            self.table("CUPTI_ACTIVITY_KIND_KERNEL", columns, [])
        self._connection.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 7, ?, ?, ?)",
            (start, end, correlation, thread(pid, 0), self.string(name)),
        )
        return self

    def on_device(self, pid: int, device: int) -> ExportFile:
        """Move the kernels of a process to another device."""
        self._connection.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = ? WHERE globalPid = ?", (device, thread(pid, 0))
        )
        return self

    def call(
        self, name: str, start: int, end: int, correlation: int = 0, globaltid: int | None = None
    ) -> ExportFile:
        if not self._exists("CUPTI_ACTIVITY_KIND_RUNTIME"):
            self.table(
                "CUPTI_ACTIVITY_KIND_RUNTIME", "start end globalTid correlationId nameId returnValue", []
            )
        self._connection.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, 0)",
            (start, end, thread() if globaltid is None else globaltid, correlation, self.string(name)),
        )
        return self

    def session(self, utc_epoch_ns: int) -> ExportFile:
        return self.table("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", [(utc_epoch_ns,)])

    def environment(self, **variables: str) -> ExportFile:
        rows = [("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"') for name, value in variables.items()]
        return self.table("META_DATA_CAPTURE", "name value", rows)

    def command(self, *words: str) -> ExportFile:
        rows = [("PROCESS_0:COMMAND", words[0])]
        rows += [(f"PROCESS_0:ARGUMENT_{number}", word) for number, word in enumerate(words[1:])]
        return self.table("META_DATA_CAPTURE", "name value", rows)

    def process_environment(self, **variables: str) -> ExportFile:
        """As nsys keeps a child's environment: one string, variables divided by zero bytes."""
        self.string("\0".join(f"{name}={value}" for name, value in variables.items()))
        return self

    def write(self) -> Path:
        self._connection.commit()
        self._connection.close()
        return self.path

    def _exists(self, table: str) -> bool:
        found = self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))
        return found.fetchone() is not None
