"""The forked export beside libraries that mend their own descriptors in every forked process."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

# A process of its own: the library's descriptors are its first ones, and Python cannot take the hook back.
JOB = """\
import contextlib, os, sys
from pathlib import Path
from rankscope.inapp.forked_export import Export, ExportOrder

def pipes():
    return [number for _ in range(3) for number in os.pipe()]

def as_libuv_does():
    "Close the numbers that once were its pipes, whoever has them now, and make new ones."
    for number in once_ours:
        with contextlib.suppress(OSError):
            os.close(number)
    once_ours[:] = pipes()

once_ours = pipes()
os.register_at_fork(after_in_child=as_libuv_does)
save = lambda name: Path(name).write_text('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}')
export = Export(ExportOrder(save, Path(sys.argv[1]), None, 0, lambda outcome: None))
export.wait(20)
print(export.outcome["state"])
"""


def test_descriptors_that_a_library_closes_in_every_fork_are_not_ours(tmp_path: Path) -> None:
    target = tmp_path / "rank-0.json.gz"
    done = subprocess.run([sys.executable, "-c", JOB, target], capture_output=True, text=True, check=True)
    assert done.stdout == "whole\n", done.stderr
    assert [event["name"] for event in json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]] == [
        "a"
    ]
