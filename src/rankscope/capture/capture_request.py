"""Requests for a capture of a running job: small files in the run folder, which every rank looks for once a second.

    RUN/telemetry/capture-0001.json, capture-0002.json, ...

The first free number is taken, so that several makers need no lock. A request names steps that lie ahead of every rank:
all ranks that it selects record the same steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from rankscope.capture.run_folder import read_json
from rankscope.capture.schedule import DEFAULT_ACTIVE, DEFAULT_WARMUP
from rankscope.capture.telemetry_ring import FOLDER
from rankscope.files import create_json


class CaptureRequest(NamedTuple):
    """Which steps of which ranks are recorded, and why."""

    first_step: int
    steps: int = DEFAULT_ACTIVE
    warmup: int = DEFAULT_WARMUP
    ranks: str = "all"
    reason: str = ""
    made_unix_ns: int = 0

    @property
    def last_step(self) -> int:
        return self.first_step + self.steps - 1


def request_path(run: Path, number: int) -> Path:
    return run / FOLDER / f"capture-{number:04d}.json"


def make_request(run: Path, request: CaptureRequest) -> int:
    """Write a request into the run folder; returns its number."""
    number = 1
    while not create_json(request_path(run, number), request._asdict()):
        number += 1
    return number


def read_request(run: Path, number: int) -> CaptureRequest | None:
    """The request of this number; None where there is none, or something else in its place."""
    content = read_json(request_path(run, number)) or {}
    fields: dict[str, Any] = {name: content[name] for name in CaptureRequest._fields if name in content}
    numbers = (fields.get("first_step"), fields.get("steps", 1), fields.get("warmup", 0))
    if not all(isinstance(count, int) and count >= 0 for count in numbers) or fields.get("steps", 1) == 0:
        return None
    return CaptureRequest(**fields)
