"""A user's script, for type checkers: `make check` runs mypy --strict and pyright on it (tests/typing/check.sh).

No expression may be Any: the checkers must know the type of every name, argument and result.
"""

import sys
from pathlib import Path

import pandas
import polars
import pyarrow
from typing_extensions import assert_type

import rankscope


def main(path: str) -> int:
    try:
        run = rankscope.open(path, clocks="raw", prefer="torch", peak="989TF")
        assert_type(run, rankscope.OpenRun)
        steps = run.steps(ranks="0-3", steps=(2, 5)).to_pandas()
        kernels = run.kernels(by="rank", top=20).to_polars()
        breakdown = run.breakdown(ranks=[0, 1]).to_arrow()
        picture = run.plot("heatmap", steps="3:5").save("ranks.svg")
        change = run.diff(rankscope.open("NEW")).plot().svg(theme="dark")
    except rankscope.StoreError as error:
        print(error.message, error.why, error.hint, file=sys.stderr)
        return error.exit_code
    except rankscope.MissingPackageError as error:
        print(error.hint, file=sys.stderr)
        return 1
    assert_type(steps, pandas.DataFrame)
    assert_type(kernels, polars.DataFrame)
    assert_type(breakdown, pyarrow.Table)
    assert_type(picture, Path)
    assert_type(change, str)
    print(len(steps), kernels.height, breakdown.num_rows)
    for finding in run.findings().findings:
        print(finding.severity, finding.title, finding.cost_ns)
    answer = run.query("SELECT count(*) AS n FROM gpu")
    assert_type(answer, rankscope.Answer)
    return len(answer.rows)


if __name__ == "__main__":
    sys.exit(main("RUN"))
