"""Call back once torch.distributed has given this process a rank, whichever function of torch asked for it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from rankscope.inapp.import_hooks import after_import

_MODULE = "torch.distributed.distributed_c10d"


def when_joined(callback: Callable[[], None]) -> None:
    """Call ``callback`` when the default process group is there: now, or at the end of init_process_group.

    Not in forked children of this process.
    """
    pid = os.getpid()

    def watch() -> None:
        module: Any = sys.modules[_MODULE]
        original = getattr(module, "_update_default_pg", None)
        if original is None:  # torch was built without torch.distributed
            return

        @functools.wraps(original)
        def update_default_pg(group: Any) -> None:
            original(group)
            if group is not None and os.getpid() == pid:
                callback()

        # init_process_group looks it up when it is called, also for those who have imported init_process_group itself.
        module._update_default_pg = update_default_pg
        if module.is_initialized():
            callback()

    after_import(_MODULE, watch)
