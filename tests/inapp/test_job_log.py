"""Our lines go to the job's stderr and to nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

JOB = """\
import io, os, sys
from rankscope.inapp.job_log import JobLog

log = JobLog(3)
log.warning("one")
sys.stderr = io.StringIO()
log.warning("two")
print(sys.stderr.getvalue(), end="")
sys.stderr = sys.__stderr__
os.close(2)
file = open(sys.argv[1], "w")
assert file.fileno() == 2
log.warning("three")
"""


def test_a_file_that_the_script_opens_instead_of_stderr_stays_its_own(tmp_path: Path) -> None:
    words = [sys.executable, "-c", JOB, str(tmp_path / "file")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == "rankscope: rank 3: one\n"
    assert done.stdout == "rankscope: rank 3: two\n"
    assert (tmp_path / "file").read_text() == ""
