"""Started by deepspeed in place of the script: ``python -u -m rankscope.capture.deepspeed --local_rank=N …``.

deepspeed passes --local_rank=N as the first argument. It belongs to the training script, so it replaces
``LOCAL_RANK_PLACE`` there; the rest is an ordinary `rankscope profile`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rankscope.capture.launcher_command import LOCAL_RANK_PLACE, own_command


def place_local_rank(words: Sequence[str]) -> list[str]:
    """Move deepspeed's argument to where the script expects it (with --no_local_rank there is none)."""
    given = [word for word in words[:1] if word.startswith("--local_rank=")]
    rest = list(words[len(given) :])
    index = rest.index(LOCAL_RANK_PLACE)
    return [*rest[:index], *given, *rest[index + 1 :]]


def main() -> None:
    words = [*own_command(), *place_local_rank(sys.argv[1:])]
    os.execv(sys.executable, words)


if __name__ == "__main__":
    main()
