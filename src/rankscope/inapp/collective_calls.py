"""Process group, sequence number and peer of the collectives of a window, which gloo's annotations do not have.

Collectives come from torch's flight recorder, read once at the window's end. It has no sends and receives of gloo:
those are noted when they are called, in two microseconds. NCCL's metadata is in torch's trace already.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rankscope.inapp.step_figures import leave_out_this_frame, replace_function
from rankscope.inapp.telemetry import OTHER_BACKENDS, flight_entries

# More are forgotten, the oldest first: about 20 characters each, and a field of the header has at most 45,000.
MOST_CALLS = 1500
_NCCL = "nccl"


class _Group(NamedTuple):
    """A process group of another backend than NCCL."""

    name: str
    ranks: list[int]


_Row = tuple[int, tuple[Any, ...], int | None]
"""The time of a call since 1970, what is called, and the sequence number."""


class CollectiveCalls:
    """Of one window after another: ``begin``, and ``end``."""

    def __init__(self) -> None:
        self._since_ns = 0
        self._messages: list[_Row] = []
        self._groups: dict[Any, _Group | None] = {}
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        self.off()
        self._since_ns = time.time_ns()
        import torch

        if torch.distributed.is_available() and torch.distributed.is_initialized():
            group = torch._C._distributed_c10d.ProcessGroup
            for name, kind in (("send", "send"), ("recv", "recv"), ("recv_anysource", "recv")):
                self._undo.append(replace_function(group, name, self._noting(kind, name != "recv_anysource")))

    def off(self) -> None:
        """Leave torch as it was found."""
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._messages, self._groups = [], {}

    def end(self) -> dict[str, Any] | None:
        """What the header's field "collectives" has; None where there is nothing to say.

        ``calls`` has, in the order of time, the microseconds since ``since_unix_ns``, an index into ``what`` and the
        sequence number in the group, null for messages. ``what`` has kind, group, peer (a rank of the job), dtype, and
        the number of elements.
        """
        messages, since = self._messages, self._since_ns
        self.off()
        rows = [*_collectives(since), *messages]
        if not rows:
            return None
        rows.sort(key=lambda row: row[0])
        what: dict[tuple[Any, ...], int] = {}
        calls = [
            [(unix_ns - since) // 1000, what.setdefault(described, len(what)), seq]
            for unix_ns, described, seq in rows[-MOST_CALLS:]
        ]
        return {"since_unix_ns": since, "what": [list(described) for described in what], "calls": calls}

    def _noting(self, kind: str, has_peer: bool) -> Callable[[Any], Any]:
        def around(function: Any) -> Any:
            def noted(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
                now = time.time_ns()
                with contextlib.suppress(Exception):  # the job must go on
                    self._note(now, kind, group, tensors[0], args[0] if has_peer and args else None)
                try:
                    return function(group, tensors, *args, **kwargs)
                except BaseException as error:
                    leave_out_this_frame(error)
                    raise

            return noted

        return around

    def _note(self, unix_ns: int, kind: str, group: Any, tensor: Any, peer: int | None) -> None:
        """``peer`` is a rank of the group; None: from anybody."""
        if group not in self._groups:
            import torch.distributed as dist

            uses_nccl = dist.get_backend(group) == _NCCL
            members = None if uses_nccl else _Group(group.group_name, dist.get_process_group_ranks(group))
            self._groups[group] = members
        members = self._groups[group]
        if members is not None:
            rank = None if peer is None else members.ranks[peer]
            described = (kind, members.name, rank, str(tensor.dtype), tensor.numel())
            self._messages.append((unix_ns, described, None))
            if len(self._messages) > 2 * MOST_CALLS:
                del self._messages[:MOST_CALLS]


def _collectives(since_ns: int) -> Iterable[_Row]:
    for entry in flight_entries(OTHER_BACKENDS):
        if entry["time_created_ns"] >= since_ns and not entry.get("is_p2p"):
            types, sizes = entry.get("input_dtypes") or [None], entry.get("input_sizes") or []
            elements = sum(math.prod(size) for size in sizes) if sizes else None
            described = (entry["profiling_name"], entry["process_group"][0], None, types[0], elements)
            yield entry["time_created_ns"], described, entry["collective_seq_id"]
