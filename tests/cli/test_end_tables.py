"""`profile --stats=LIST`, and options whose value is written only behind "="."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.cli import command_parser, main
from rankscope.cli.end_tables import end_tables
from rankscope.cli.profile import option_words
from rankscope.errors import UsageError


@pytest.mark.parametrize(
    ("words", "stats", "command"),
    [
        (["--stats", "torchrun", "t.py"], "true", ["torchrun", "t.py"]),
        (["--stats=true", "torchrun", "--stats"], "true", ["torchrun", "--stats"]),
        (["--stats=kernels,ncu", "t.py"], "kernels,ncu", ["t.py"]),
        (["--stats=false", "t.py"], "false", ["t.py"]),
        (["--stats", "false", "t.py", "true"], "false", ["t.py", "true"]),
        (["-fn", "--stats", "--", "t.py"], "true", ["--", "t.py"]),
        (["t.py", "--stats"], None, ["t.py", "--stats"]),
    ],
)
def test_a_value_only_behind_an_equals_sign(words: list[str], stats: str | None, command: list[str]) -> None:
    args = command_parser("profile")[0].parse_args(words)
    assert (args.stats, args.command) == (stats, command)


def test_the_spelling_of_nsys() -> None:
    parser = command_parser("profile")[0]
    args = parser.parse_args(["--tool", "nsys", "--cuda-memory-usage=true", "--nic-metrics", "python"])
    assert (args.cuda_memory_usage, args.nic_metrics, args.command) == (True, True, ["python"])
    assert option_words(args) == ["--tool", "nsys", "--cuda-memory-usage=true", "--nic-metrics=true"]
    assert not parser.parse_args(["--cuda-memory-usage=false", "python"]).cuda_memory_usage
    with pytest.raises(UsageError, match="maybe is neither true nor false"):
        parser.parse_args(["--cuda-memory-usage=maybe", "python"])


@pytest.mark.slow
def test_which_tables() -> None:
    assert end_tables("true") == [[]]
    assert end_tables("kernels, ncu,nsys:cuda_api_sum,nsys:nvtx_sum,steps") == [
        ["-r", "kernels,ncu"],
        ["--compat", "nsys", "-r", "cuda_api_sum,nvtx_sum"],
        ["-r", "steps"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kernel", "nsys:kernels"])
def test_a_wrong_name_is_refused_before_the_job_starts(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    assert main(["profile", f"--stats={name}", "touch", str(ran)]) == 2
    assert "--stats: there is no table" in capsys.readouterr().err
    assert not ran.exists()
