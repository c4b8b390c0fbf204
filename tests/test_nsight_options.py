"""Every option of nsys and ncu is taken over, or refused with a reason: compared with their own --help."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.cli import command_parser, main
from rankscope.errors import UsageError
from rankscope.nsight_options import first_option, is_option_of, take

TOOLS = Path(sys.prefix) / "nsight/bin"
# The user guide of Nsight Systems 2026.2 has these that the installed version lacks.
NEWER_NSYS = """accelerator-trace after-collection-start after-report-ready auto-report-name clock-frequency-changes
    cpu-cluster-events cpu-core-metrics cpu-metrics cpu-socket-events cpu-socket-metrics cuda-event-trace
    cuda-trace-all-apis cuda-trace-scope dask debug-symbols discard-environment dx-force-declare
    dx-force-declare-adapter-removal-support dx12-gpu-workload dx12-wait-calls enable etw-provider event-sampling
    event-sampling-multiplex-interval flush-on gds-libs-path gds-metrics gpu-metrics-devices ib-net-info-devices
    ib-net-info-files ib-net-info-output ib-switch-congestion ib-switch-congestion-devices ib-switch-metrics
    ib-switch-metrics-devices ib-switch-metrics-nic injection-use-detours isr osrt-backtrace osrt-backtrace-depth
    osrt-file-access process-scope python-functions-trace pytorch qnx-kernel qnx-kernel-events qnx-kernel-events-mode
    retain-etw-files sampling-frequency sampling-trigger soc-metrics soc-metrics-frequency soc-metrics-set syscall vsync
    wddm-additional-events wddm-backtraces wddm-memory-trace xhv-trace xhv-trace-events xhv-vm-symbols"""
NEWER_NCU = """call-stack-type communicator communicator-tcp-num-peers disable-pm-warp-sampling lockstep-kernel-launch
    native-exclude native-include nvtx-push-pop-scope pipeline-boost-state python-exclude python-include rename-kernels
    rename-kernels-export rename-kernels-path print-metric-attribution warp-samples-per-interval"""


def options_of(tool: str) -> set[str]:
    """From the help of the installed program."""
    words = [str(TOOLS / tool), *(["profile"] if tool == "nsys" else []), "--help"]
    text = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60).stdout
    text = text.replace("--nvtx-domain-[include|exclude]", "--nvtx-domain-include")
    line = r"^(?:\(Experimental\) )?\s*(?:\(Experimental\) )?(?:-\w(?:, | \[ ))?--([a-z0-9-]+)"
    return set(re.findall(line, text, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "least", "newer"), [("nsys", 55, NEWER_NSYS), ("ncu", 75, NEWER_NCU)])
def test_every_option_of_the_help_is_known(tool: str, least: int, newer: str) -> None:
    if not (TOOLS / tool).exists():
        pytest.skip(f"{tool} is not installed")
    names = options_of(tool)
    assert len(names) >= least
    for name in sorted(names | set(newer.split())):
        assert is_option_of(tool, f"--{name}"), name
        taken = take(tool, [f"--{name}=1"])
        assert not any("no option" in reason for _, reason in taken.refused), name
        assert program_after(tool, f"--{name}", "true") in ("app", "refused"), name


def program_after(tool: str, option: str, value: str) -> str:
    """The program that `profile` would run: the value behind a blank must not be it."""
    parser = command_parser("profile")[0]
    value_words = [value] if first_option(tool, [option, value])[1] else []
    try:
        return str(parser.parse_args(["--tool", tool, option, *value_words, "app"]).command[0])
    except (UsageError, SystemExit):  # SystemExit: --help
        return "refused"


@pytest.mark.parametrize(
    "name", ["show-output", "stats", "cuda-memory-usage", "nic-metrics", "force-overwrite"]
)
def test_true_and_false_of_nsys_stand_behind_a_blank(name: str) -> None:
    assert program_after("nsys", f"--{name}", "false") == "app"
    assert program_after("nsys", f"--{name}", "true") == "app"


@pytest.mark.parametrize(
    ("tool", "line", "words"),
    [
        (
            "nsys",
            "-t cuda,nvtx -s none --cpuctxsw=none",
            ["--trace=cuda,nvtx", "--sample=none", "--tool-arg=--cpuctxsw=none"],
        ),
        ("nsys", "-f true -w true -x true --kill none --export=none -n true", ["-f", "--show-output=true"]),
        ("nsys", "-ffalse --force-overwrite false -Y false", []),
        ("nsys", "-y 5 --duration=7", ["--after", "5s", "--for", "7s"]),
        ("nsys", "-c nvtx -p step@train --capture-range-end stop-shutdown", ["-c", "nvtx:step@train"]),
        ("nsys", "--capture-range=cudaProfilerApi", ["-c", "cudaProfilerApi"]),
        ("nsys", "-s cpu --nic-metrics=lf", ["--tool-arg=--sample=cpu", "--tool-arg=--nic-metrics=lf"]),
        (
            "nsys",
            "-e A=1,B=2 --python-sampling true",
            ["--tool-arg=--env-var=A=1,B=2", "--tool-arg=--python-sampling=true"],
        ),
        (
            "ncu",
            "-f -k regex:gemm -c 3 -s 2",
            ["-f", "--kernel-name=regex:gemm", "--launch-count=3", "--launch-skip=2"],
        ),
        ("ncu", "--set full --set basic", ["--set=full", "--tool-arg=--set=basic"]),
        (
            "ncu",
            "--nvtx --nvtx-include a/ --metrics x,y",
            ["--tool-arg=--nvtx", "--tool-arg=--nvtx-include=a/", "--tool-arg=--metrics=x,y"],
        ),
        (
            "ncu",
            "--profile-from-start off --replay-mode range",
            ["-c", "cudaProfilerApi", "--tool-arg=--replay-mode=range"],
        ),
    ],
)
def test_taken_over(tool: str, line: str, words: list[str]) -> None:
    taken = take(tool, [*line.split(), "python", "train.py", "-o", "x"])
    assert taken.words == words
    assert taken.refused == []
    assert taken.application == ["python", "train.py", "-o", "x"]


@pytest.mark.parametrize(
    ("tool", "option", "reason"),
    [
        ("nsys", "--session-new=a", "ends the session with the job"),
        ("nsys", "--kill=sigterm", "lets the job go on"),
        ("nsys", "--stop-on-exit=false", "with the job"),
        ("nsys", "--capture-range-end=repeat:3", "a schedule"),
        ("nsys", "--capture-range=hotkey", "--on-signal"),
        ("nsys", "--inherit-environment=false", "launcher's variables"),
        ("nsys", "--wddm-backtraces=true", "Windows"),
        ("nsys", "--bogus=1", "no option of nsys"),
        ("ncu", "--csv", "rankscope stats RUN -r ncu"),
        ("ncu", "--replay-mode=application", "starts the job again"),
        ("ncu", "--list-sets", "profiles nothing"),
        ("ncu", "--kill=yes", "lets the job go on"),
    ],
)
def test_refused_with_the_reason(tool: str, option: str, reason: str) -> None:
    taken = take(tool, [option, "python"])
    assert (taken.words, taken.application) == ([], ["python"])
    [(name, why)] = taken.refused
    assert name == option
    assert reason in why


@pytest.mark.parametrize(
    ("words", "tools"),
    [
        (
            "--tool nsys -f true --python-sampling=true -d 5",
            "--duration=5 --force-overwrite=true --python-sampling=true",
        ),
        ("--cudabacktrace kernel --tool=nsys -w true", "--cudabacktrace=kernel"),
        (
            "--tool nsys --show-output false --stats true --cuda-memory-usage true --wait all --sample cpu",
            "--cuda-memory-usage=true --show-output=false --wait=all --sample=cpu",
        ),
        ("--tool ncu --set basic -s4", "--launch-skip=4 --set=basic"),
        ("--tool ncu --nvtx --section A -s 4", "--launch-skip=4 --nvtx --section=A"),
    ],
)
def test_profile_takes_the_tools_own_options(
    words: str, tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = "nsys" if "nsys" in words else "ncu"
    program = tmp_path / tool
    program.write_text("#!/bin/sh\necho version 2024.1.1\n")
    program.chmod(0o755)
    call = [
        "profile",
        *words.split(),
        f"--{tool}",
        str(program),
        "-n",
        "-o",
        str(tmp_path / "run"),
        "true",
        "--csv",
    ]
    assert main(call) == 0
    line = capsys.readouterr().out.split()
    assert [word for word in line if word in tools.split()] == tools.split()
    assert line[-2:] == ["true", "--csv"]


def test_profile_refuses_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--tool", "nsys", "--start-later=true", "true"]) == 2
    assert (
        "--start-later=true of nsys is not possible\n  Nobody would run `nsys start`"
        in capsys.readouterr().err
    )
    assert main(["profile", "--start-later=true", "true"]) == 2  # torch has no such option
    assert "unrecognized arguments" in capsys.readouterr().err
