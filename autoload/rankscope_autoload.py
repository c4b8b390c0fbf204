"""Called at the end of every `import torch`: starts rankscope where RANKSCOPE asks for it, else returns at once.

A distribution of its own, because it concerns every program that imports torch.
"""

import os
import sys


def load() -> None:
    if not os.environ.get("RANKSCOPE"):
        return
    try:
        from rankscope.environment import start

        start()
    except Exception as error:  # noqa: BLE001  (torch would not be imported)
        sys.stderr.write(f"rankscope: not captured, the job goes on: {error!r}\n")
