"""Work in copies of this process, which have all that it has in memory: nothing is sent to them."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from rankscope.errors import StoreError


class Fork:
    """A copy of this process that goes through `results` and sends each here."""

    def __init__(self, results: Callable[[], Iterable[Any]]) -> None:
        context = get_context("fork")
        self._results, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_send, args=(results, sender), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # numpy's threads are idle, and prepared for forks
            self._process.start()
        sender.close()

    def results(self, *, wait: bool, meanwhile: Callable[[], None] = lambda: None) -> Iterator[Any]:
        """Those that are there; with `wait` all until its end, and every second `meanwhile` is called."""
        while not self._results.closed and (wait or self._results.poll()):
            while not self._results.poll(1.0):
                meanwhile()
            try:
                result = self._results.recv()
            except EOFError:
                self._results.close()
                self._process.join()
                if self._process.exitcode:
                    raise StoreError(
                        f"a process ended with status {self._process.exitcode}",
                        why="It was killed, perhaps because memory ran out.",
                        hint="Write fewer ranks or events at a time",
                    ) from None
                return
            if isinstance(result, Exception):
                raise result
            yield result

    def end(self) -> None:
        self._process.terminate()
        self._process.join()


def _send(results: Callable[[], Iterable[Any]], sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a traceback
    try:
        for result in results():
            sender.send(result)
    except Exception as error:  # noqa: BLE001 - raised again in the process that waits for the results
        sender.send(error)
