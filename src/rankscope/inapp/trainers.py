"""Classes of trainers that run the loop, and callbacks for them that drive a rankscope.profile:

trainer = Trainer(..., callbacks=[rankscope.trainer_callback(rankscope.profile("prof"))])
trainer = Trainer(callbacks=[rankscope.lightning_callback(rankscope.profile("prof"))])

Quick to import: Lightning does so for every Trainer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankscope.inapp.profiler import profile

LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
"""The same framework under two names."""


def framework_class(modules: Sequence[str], name: str) -> type:
    """A framework's class: of the module that is imported already, else installed; elsewhere a plain one, for trainers
    that call the same methods."""
    import importlib.util

    for module in sorted(modules, key=lambda module: module.partition(".")[0] not in sys.modules):
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            base: type = getattr(importlib.import_module(module), name)
            return base
    return object


def trainer_callback(prof: profile) -> Any:
    """For transformers.Trainer: a step is an optimizer step (its on_step_end)."""

    class RankscopeCallback(framework_class(("transformers",), "TrainerCallback")):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            prof.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            prof.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            prof.stop()

    return RankscopeCallback()


def lightning_callback(prof: profile) -> Any:
    """For Lightning's Trainer: a step is a training batch."""

    class RankscopeCallback(framework_class(LIGHTNING, "Callback")):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            prof.start()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
            prof.step()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            prof.stop()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            prof.stop(f"{type(exception).__name__} ended the training")

    return RankscopeCallback()
