"""train.py with the stand-in for torch (tests/torch_standin): for tests of processes, not of torch."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "torch_standin"), str(HERE)]

if __name__ == "__main__":
    from train import main

    main()
