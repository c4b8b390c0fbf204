"""Which call of which optimizer ends a training step.

With one optimizer, every call. With several, a step ends when each has stepped at least once more, so the one that
steps least often decides: five discriminator steps and one generator step of a GAN are one step; AdamW beside Muon
is one step, which ends with the later of the two. With gradient accumulation the optimizer steps once per step
anyway. A step that GradScaler skips does not reach the optimizer and becomes part of the next one. A DeepSpeed engine
counts as one optimizer, and the optimizers inside it do not count.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from rankscope.inapp.import_hooks import after_import

_DEEPSPEED = "deepspeed.runtime.engine"

# An optimizer that has not stepped while another stepped this often is unused, and is ignored.
IDLE_AFTER = 32
# An optimizer is called equally often in at least this share of the steps; the first and the last may differ.
_EVEN_SHARE = 0.7


class StepCounter:
    """Decides for every optimizer call of the process whether it ends a step."""

    def __init__(self, only: str | None, find_all: Callable[[], Iterable[Any]]) -> None:
        self.calls: dict[str, int] = {}
        self._only = only
        self._find_all: Callable[[], Iterable[Any]] | None = find_all
        self._counts: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._in_this_step: Counter[int] = Counter()
        self._steps = 0
        self._behind = 0
        # Of each optimizer: its name, its calls up to the end of the last step, and how many steps had how many calls.
        self._names: dict[int, str] = {}
        self._whole: dict[int, int] = {}
        self._calls_in_steps: dict[int, Counter[int]] = {}

    def ends_step(self, optimizer: Any) -> bool:
        """Note one call; True when it ends a training step."""
        name = type(optimizer).__name__
        self.calls[name] = self.calls.get(name, 0) + 1
        if self._only is not None and name != self._only:
            return False
        if self._find_all is not None:
            # At the first step, so that optimizers that have not stepped yet count from the start.
            for other in self._find_all():
                if self._only is None or type(other).__name__ == self._only:
                    self._join(other, 0)
            self._find_all = None
        key = id(optimizer)
        if key not in self._counts:
            self._join(optimizer, self._steps)
        count = self._counts[key]
        self._counts[key] = count + 1
        if count == self._steps:
            self._behind -= 1
        else:  # after its first call in this step
            self._in_this_step[key] += 1
            if self._in_this_step[key] > IDLE_AFTER:
                self._drop([key for key, value in self._counts.items() if value == self._steps])
                return False
        if self._behind > 0:
            return False
        self._steps += 1
        self._in_this_step.clear()
        behind = 0
        for each, calls in self._counts.items():
            self._calls_in_steps[each][calls - self._whole[each]] += 1
            self._whole[each] = calls
            behind += calls == self._steps
        self._behind = behind
        return True

    def uneven(self) -> str | None:
        """A message where an optimizer steps now more often in a step, now less."""
        uneven = []
        for key, steps in self._calls_in_steps.items():
            if steps and max(steps.values()) < _EVEN_SHARE * steps.total():
                uneven.append(f"{self._names[key]} {min(steps)} to {max(steps)} times")
        if not uneven:
            return None
        return (
            f"the optimizers do not step in turn: in one step {', '.join(uneven)}. A step ends when each has stepped; "
            "--step-on NAME counts one of them"
        )

    def _join(self, optimizer: Any, count: int) -> None:
        key = id(optimizer)
        if key in self._counts:
            return
        self._alive[key] = weakref.ref(optimizer, lambda _: self._drop([key]))
        self._counts[key] = count
        self._names[key] = type(optimizer).__name__
        self._whole[key] = count
        self._calls_in_steps[key] = Counter()
        self._behind += 1

    def _drop(self, keys: list[int]) -> None:
        for key in keys:
            self._counts.pop(key, None)
            self._alive.pop(key, None)
        # The remaining ones may all be ahead; then the next call ends a step.
        self._steps = min(self._counts.values(), default=self._steps)
        self._behind = sum(count == self._steps for count in self._counts.values())


class DeepSpeedSteps:
    """Calls ``stepped`` after each step of a DeepSpeed engine, in which ZeRO calls the optimizer several times, once
    for each parameter group. ``inside`` is true while an engine steps its optimizers.
    """

    def __init__(self, stepped: Callable[[Any], None]) -> None:
        self.inside = False
        self._stepped = stepped
        self._restore: Callable[[], None] = lambda: None
        after_import(_DEEPSPEED, self._watch)

    def _watch(self) -> None:
        engine_class = getattr(sys.modules[_DEEPSPEED], "DeepSpeedEngine", None)
        # Called by engine.step() at the end of a gradient accumulation and by the pipeline engine, also where an
        # overflow skips the optimizer.
        original = getattr(engine_class, "_take_model_step", None)
        if engine_class is None or original is None:
            return

        @functools.wraps(original)
        def take_model_step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            self.inside = True
            try:
                result = original(engine, *args, **kwargs)
            finally:
                self.inside = False
            self._stepped(engine)
            return result

        engine_class._take_model_step = take_model_step

        def restore() -> None:
            if engine_class._take_model_step is take_model_step:  # not wrapped again since
                engine_class._take_model_step = original

        self._restore = restore

    def release(self) -> None:
        """Leave DeepSpeed as it was found."""
        self._restore()


def live_optimizers() -> list[Any]:
    """Every optimizer object in the process whose steps torch's global hook can see; with DeepSpeed, its engines.

    Wrappers (accelerate, Lightning) are Optimizer subclasses that never step themselves: torch does not hook
    them.
    """
    # type(), because isinstance asks proxies for __class__, which may run their code
    if (deepspeed := sys.modules.get(_DEEPSPEED)) is not None:
        engines = [thing for thing in gc.get_objects() if deepspeed.DeepSpeedEngine in type(thing).__mro__]
        if stepping := [engine for engine in engines if getattr(engine, "optimizer", None) is not None]:
            return stepping  # their optimizers step inside them; another one counts from its first step
    from torch.optim import Optimizer

    optimizers = [thing for thing in gc.get_objects() if Optimizer in type(thing).__mro__]
    return [optimizer for optimizer in optimizers if getattr(type(optimizer).step, "hooked", False)]
