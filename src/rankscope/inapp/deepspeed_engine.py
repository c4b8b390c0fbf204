"""The steps of a DeepSpeed engine, in which ZeRO calls the optimizer several times: once for each parameter group."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from rankscope.inapp.import_hooks import after_import

_MODULE = "deepspeed.runtime.engine"


class DeepSpeedSteps:
    """Calls ``stepped`` after each step of an engine; ``inside`` is true while an engine steps its optimizers."""

    def __init__(self, stepped: Callable[[Any], None]) -> None:
        self.inside = False
        self._stepped = stepped
        self._restore: Callable[[], None] = lambda: None
        after_import(_MODULE, self._watch)

    def _watch(self) -> None:
        engine_class = getattr(sys.modules[_MODULE], "DeepSpeedEngine", None)
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


def live_engines() -> list[Any]:
    """Every DeepSpeed engine in the process that steps an optimizer."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return []
    import gc

    engine_class = module.DeepSpeedEngine
    # type(), because isinstance asks proxies for __class__, which may run their code
    return [
        thing
        for thing in gc.get_objects()
        if engine_class in type(thing).__mro__ and getattr(thing, "optimizer", None) is not None
    ]
