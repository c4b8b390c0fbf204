"""Hugging Face's Trainer: Trainer(callbacks=[rankscope.huggingface.Callback("profile --steps 20:24")])."""

from __future__ import annotations

from typing import Any

from rankscope.integrations import environment


class Callback(environment.framework_class(("transformers",), "TrainerCallback")):  # type: ignore[misc]
    """Captures every rank as the words ask. A step is an optimizer step, however many batches it accumulates; an
    evaluation is a range of its own.
    """

    def __init__(self, words: str = "profile") -> None:
        self._words = words
        self._evaluation: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        environment.start(self._words)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer says when a batch of an evaluation has ended, not when the evaluation begins."""
        if self._evaluation is None:
            self._evaluation = environment.open_range("evaluation")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        environment.close_range(self._evaluation)
        self._evaluation = None
