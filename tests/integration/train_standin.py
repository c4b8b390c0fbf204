"""train.py with the stand-in for torch (tests/torch_standin): for tests of processes, not of torch."""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent / "torch_standin"))
    runpy.run_path(str(HERE / "train.py"), run_name="__main__")
