"""HTA's answer to a case, in the environment of HTA: get_potential_stragglers with one candidate, for each step.

HTA lists candidates: it names a rank in every run. The rank that most steps name is the answer, and the share of the
steps its confidence. HTA 0.5 only knows communication kernels by NCCL's old name (ncclKernel…); with the names of NCCL
2.19 and later it finds none. So that it can answer at all, it gets a copy of the traces with the old name. Its critical
path is that of a single rank: it compares none.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hta.trace_analysis import TraceAnalysis


def ask(folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("rank-*.json.gz"))
    if not files:
        return {"who": "unknown", "why": "no Kineto trace"}
    with tempfile.TemporaryDirectory() as renamed, contextlib.redirect_stdout(sys.stderr):
        copies = {}
        for rank, path in enumerate(files):
            copies[rank] = str(Path(renamed) / path.name)
            text = gzip.decompress(path.read_bytes()).replace(b'"ncclDevKernel_', b'"ncclKernel_')
            Path(copies[rank]).write_bytes(gzip.compress(text, 1))
        analysis = TraceAnalysis(trace_files=copies)
        votes: Counter[int] = Counter()
        steps = analysis.get_profiler_steps()
        for step in steps:
            # A step without long collectives on the GPU is no vote.
            with contextlib.suppress(ValueError, KeyError, IndexError):
                votes.update(
                    int(rank) for rank in analysis.get_potential_stragglers([step], num_candidates=1)
                )
    if not votes:
        return {"who": "unknown", "why": "no candidates"}
    (rank, count), *_ = votes.most_common(1)
    return {"who": "rank", "ranks": [rank], "confidence": min(1.0, count / len(steps))}


if __name__ == "__main__":
    try:
        answer = ask(Path(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - what the tool cannot read is no answer
        answer = {"who": "unknown", "why": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(answer))
