"""Callbacks for trainers that run the loop: Hugging Face's Trainer and Lightning's.

Each subclasses the package's callback class where the package is installed. Elsewhere it is a plain class with
the same methods, for trainers that call them.

    trainer = Trainer(..., callbacks=[rankscope.trainer_callback(rankscope.profile("prof"))])
    trainer = Trainer(callbacks=[rankscope.lightning_callback(rankscope.profile("prof"))])
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from rankscope.inapp.profiler import profile


def trainer_callback(prof: profile) -> Any:
    """For transformers.Trainer: a step is an optimizer step (its on_step_end)."""

    class RankscopeCallback(_base(("transformers",), "TrainerCallback")):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            prof.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            prof.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            prof.stop()

    return RankscopeCallback()


def lightning_callback(prof: profile) -> Any:
    """For Lightning's Trainer: a step is a training batch."""

    class RankscopeCallback(_base(("lightning.pytorch", "pytorch_lightning"), "Callback")):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            prof.start()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
            prof.step()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            prof.stop()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            prof.stop(f"{type(exception).__name__} ended the training")

    return RankscopeCallback()


def _base(modules: Sequence[str], name: str) -> type:
    for module in modules:
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            base: type = getattr(importlib.import_module(module), name)
            return base
    return object
