"""`python -m rankscope`, for machines where the command is not on PATH; and by the path of this file: then no module
beside the job is in the way."""

import sys

if not __package__:
    _package = __file__.rpartition("/")[0]
    sys.path.remove(_package)
    # behind the standard library, before other packages
    _index = next((index for index, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
    sys.path.insert(_index, _package.rpartition("/")[0])

from rankscope.cli import run

run()
