"""accelerate: Accelerator(log_with=rankscope.accelerate.Tracker("profile --steps 20:24")), beside its ProfileKwargs."""

from __future__ import annotations

from typing import Any

from rankscope.integrations import environment


class Tracker(environment.framework_class(("accelerate.tracking",), "GeneralTracker")):  # type: ignore[misc]
    """Captures every rank as the words ask, from its making on: accelerate calls trackers on the main process only. A
    step is an optimizer step: one that accelerate skips while it accumulates gradients is none.
    """

    name = "rankscope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, words: str = "profile") -> None:
        super().__init__()
        environment.start(words)

    @property
    def tracker(self) -> Any:
        """What accelerator.get_tracker("rankscope", unwrap=True) returns: the capture's engine, if there is one."""
        from rankscope.inapp.engine import current_engine

        return current_engine()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Settings are not ours, nor losses."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        pass

    def finish(self) -> None:
        """An open window ends with the process, as behind any launcher."""
