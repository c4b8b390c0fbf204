"""Lightning and Fabric: a capture without a line of code where RANKSCOPE asks for one, and a profiler for the Trainer.

    RANKSCOPE="profile --steps 20:24" python train.py
    Trainer(profiler=rankscope.lightning.Profiler("profile --steps 20:24"))

The first works through the entry points lightning.pytorch.callbacks_factory and lightning.fabric.callbacks_factory.
"""

from __future__ import annotations

from typing import Any

from rankscope.integrations import environment

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
"""The same framework under two names."""


def callbacks() -> list[Any]:
    """For every Trainer that is made: nothing, unless RANKSCOPE asks for a capture."""
    return [_Starter()] if environment.asked_words() else []


def fabric_callbacks() -> list[Any]:
    """For every Fabric that is made; no later moment is common to all its programs."""
    environment.start()
    return []


class _Starter(environment.framework_class(_LIGHTNING, "Callback")):  # type: ignore[misc]
    """Starts the capture in each process of the job, also in those that the Trainer spawns."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        environment.start()


class Profiler(environment.framework_class([f"{name}.profilers" for name in _LIGHTNING], "Profiler")):  # type: ignore[misc]
    """For Trainer(profiler=…): captures every rank as the words ask, with the Trainer's own phases as ranges.

    A step is an optimizer step, however many batches it accumulates.
    """

    def __init__(self, words: str = "profile") -> None:
        super().__init__(dirpath=None, filename=None)
        self._words = words
        self._ranges: dict[str, Any] = {}

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        environment.start(self._words)

    def start(self, action_name: str) -> None:
        self._ranges[action_name] = environment.open_range(action_name)

    def stop(self, action_name: str) -> None:
        environment.close_range(self._ranges.pop(action_name, None))
