"""`python -m rankscope`, for machines where the console script is not on PATH."""

from rankscope.cli import run

run()
