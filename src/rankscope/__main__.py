"""`python -m rankscope`, for machines where the command is not on PATH; and by the path of this file: then no module
beside the job is in the way."""

import sys

if not __package__:
    _package = __file__.rpartition("/")[0]
    sys.path[:] = [path for path in sys.path if path != _package]
    sys.path.append(_package.rpartition("/")[0])

from rankscope.cli import run

run()
