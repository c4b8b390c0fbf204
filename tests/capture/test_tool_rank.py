"""What a machine can do, where temporary files go, what a profiler left: without the profilers."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.jobs import PROFILE, environment
from rankscope.capture.rank import detect
from rankscope.capture.under_tool import preflight, reports, temp_folder
from rankscope.capture.under_tool.tool_rank import ToolRank
from rankscope.capture.wrapper import Output
from rankscope.cli import command_parser, tool_options
from rankscope.cli.profile import plan_of
from rankscope.errors import CaptureError, UsageError
from rankscope.tools import NcuOptions, NsysOptions, Tool, nsys_profile

NSYS = Tool("nsys", Path("/opt/nsys/bin/nsys"), (2023, 4))


def parsed(*words: str) -> argparse.Namespace:
    return command_parser("profile")[0].parse_args([*words, "python", "t.py"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tool", "nsys", "--record-shapes"], "--record-shapes is an option of --tool torch"),
        (["--tool", "nsys", "-k", "gemm"], "--kernel-name is an option of --tool ncu"),
        (["--tool", "ncu", "--per-node"], "--per-node is an option of --tool nsys"),
        (["-t", "cuda"], "--trace is an option of --tool nsys"),
        (["--show-output=false"], "--show-output is an option of --tool nsys"),
        (["--tool", "ncu", "--top", "3"], "--top needs --from RUN or --kernels FILE"),
        (["--top", "3"], "--top is an option of --tool ncu"),
        (["--tool", "ncu", "-c", "many"], "-c many is neither a number of launches nor cudaProfilerApi"),
        (["--tool", "nsys", "-c", "nvtx"], "-c nvtx is not a capture range"),
        (["--tool", "nsys", "-c", "hotkey"], "-c hotkey is not a capture range"),
        (["--tool", "nsys", "-c", "cudaProfilerApi", "--steps", "3:4"], "two schedules at once"),
        (["--tool", "ncu", "-c", "cudaProfilerApi", "--steps", "3:4"], "two schedules at once"),
        (["--tool", "nsys", "--tool-arg=-o", "--tool-arg=x"], "--tool-arg --output is not possible"),
        (["--tool", "ncu", "--tool-arg=--log-file=x"], "--tool-arg --log-file is not possible"),
    ],
)
def test_what_is_wrong_in_the_arguments_alone(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(parsed(*words), ("python", "t.py"))
    assert message in str(caught.value)


def nsys_options(*words: str) -> NsysOptions:
    args = parsed("--tool", "nsys", *words)
    return tool_options.nsys_options(args, plan_of(args, ("python",)).when)


def test_steps_become_a_range() -> None:
    assert nsys_options().capture_range is None
    steps = nsys_options("--steps", "10:12")
    assert (steps.capture_range, steps.captures) == ("cudaProfilerApi", 1)
    assert nsys_options("--repeat", "3").captures == 3
    assert nsys_options("--on-signal", "USR2").captures == 0
    window = nsys_options("--after", "30s", "--for", "10s")
    assert (window.capture_range, window.delay_s, window.duration_s) == (None, 30, 10)
    assert nsys_options("-c", "none").capture_range is None


def test_names_in_tool_arguments_are_expanded_by_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "here")
    output = Output(message=lambda _: None, line=lambda _: None)

    def expanded(word: str) -> tuple[str, ...]:
        args = parsed("--tool", "nsys", "-n", f"--tool-arg={word}", "-o", str(tmp_path))
        plan = plan_of(args, ("python", "t.py"))
        request = tool_options.tool_request(args, plan.when)
        return ToolRank(plan, detect({}), request, output).options.extra

    assert expanded("--session-new=%q{WHERE}") == ("--session-new=here",)
    with pytest.raises(CaptureError):
        expanded("--session-new=%q{NOWHERE}")


def test_options_travel_to_the_ranks() -> None:
    from rankscope.cli.profile import option_words

    words = option_words(
        parsed("--tool", "nsys", "--tool-arg=-X", "--tool-arg=-Y", "-c", "nvtx:a", "--nic-metrics")
    )
    assert words == [
        "--tool",
        "nsys",
        "--capture-range",
        "nvtx:a",
        "--nic-metrics=true",
        "--tool-arg=-X",
        "--tool-arg=-Y",
    ]


def test_options_that_may_be_given_to_the_tool_itself() -> None:
    """What rankscope says and does follows the option in effect, also that of --tool-arg."""
    ncu = tool_options.ncu_options(
        parsed("--tool", "ncu", "--tool-arg=--set", "--tool-arg=full", "--tool-arg=-c9")
    )
    assert "about 38 times (--set full)" in reports.ncu_advice(ncu.used_set, ncu.used_count)
    assert "(9 launches)" in reports.ncu_advice(ncu.used_set, ncu.used_count)
    assert nsys_options().shows_output
    hidden = nsys_options("--show-output=false")
    assert not hidden.shows_output
    assert "--show-output=false" in nsys_profile("nsys", hidden, Path("a"), ["python"])
    assert not nsys_options("--tool-arg=--show-output=false").shows_output


def test_several_kernels_are_one_filter() -> None:
    assert tool_options.ncu_options(parsed("--tool", "ncu", "-k", "gemm")).kernels == "gemm"
    both = tool_options.ncu_options(parsed("--tool", "ncu", "-k", "gemm", "-k", "regex:soft.*max")).kernels
    assert both == "regex:(^gemm$)|(soft.*max)"


def test_what_nsys_is_told_to_trace() -> None:
    assert NsysOptions().traces("nvtx")
    assert not NsysOptions(trace="cuda").traces("nvtx")
    assert not NsysOptions(extra=("-t", "cuda")).traces("nvtx")
    assert NsysOptions(trace="cuda", extra=("--trace=cuda,nvtx",)).traces("nvtx")


NSYS_2023 = Tool("nsys", Path("nsys"), (2023, 4, 4, 54))


def test_an_nsys_that_loses_kernels_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an H200 with CUDA 13: a whole run has no kernels after the first call of cuBLAS."""
    monkeypatch.setattr(preflight, "driver_branch", lambda: 580)
    _, [note] = preflight.fit_nsys(NsysOptions(), tool=NSYS_2023, driver=True, ranged=False)
    assert "may stop recording kernels early in a whole run: give --steps A:B" in note
    in_a_range = NsysOptions(capture_range="cudaProfilerApi")
    assert preflight.fit_nsys(in_a_range, tool=NSYS_2023, driver=True, ranged=True) == (in_a_range, [])
    newer = Tool("nsys", Path("nsys"), (2025, 3, 2))
    assert preflight.fit_nsys(NsysOptions(), tool=newer, driver=True, ranged=False) == (NsysOptions(), [])


def test_what_cannot_work_without_a_driver_is_left_out() -> None:
    asked = NsysOptions(gpu_metrics_device="all", capture_range="cudaProfilerApi")
    fitted, notes = preflight.fit_nsys(asked, tool=NSYS_2023, driver=False, ranged=True)
    assert (fitted.gpu_metrics_device, fitted.capture_range, len(notes)) == (None, None, 3)
    assert preflight.fit_nsys(asked, tool=NSYS_2023, driver=True, ranged=True) == (asked, [])
    kept, _ = preflight.fit_nsys(asked, tool=NSYS_2023, driver=False, ranged=False)
    assert kept.capture_range == "cudaProfilerApi", "the program's own range: nsys will wait for it"
    with pytest.raises(CaptureError):
        preflight.fit_ncu(NcuOptions(), driver=False, virtual=False, clocks=None)


def test_a_dry_run_shows_what_a_gpu_node_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    asked = NsysOptions(gpu_metrics_device="all", capture_range="cudaProfilerApi")
    note = "no NVIDIA driver here: this is what a node with one would run"
    shown = preflight.fit_nsys(asked, tool=NSYS_2023, driver=False, ranged=True, dry_run=True)
    assert shown == (asked, [note])
    shown_ncu = preflight.fit_ncu(NcuOptions(), driver=False, virtual=False, clocks=None, dry_run=True)
    assert shown_ncu == (NcuOptions(), [note])


def test_clocks_are_locked_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert preflight.fit_ncu(NcuOptions(), driver=True, virtual=False, clocks=None) == (NcuOptions(), [])
    options, notes = preflight.fit_ncu(NcuOptions(), driver=True, virtual=True, clocks=None)
    assert options.clock_control == "none"
    assert "virtual machine" in notes[0]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "not root" in preflight.fit_ncu(NcuOptions(), driver=True, virtual=False, clocks=None)[1][0]
    options, notes = preflight.fit_ncu(NcuOptions(), driver=True, virtual=True, clocks="base")
    assert (options.clock_control, notes) == ("base", [])


MOUNTS = """\
21 1 259:1 / / rw - ext4 /dev/root rw
30 21 0:40 / /home rw shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/with\\040space rw - lustre server rw
"""


def test_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [
        temp_folder.file_system(Path(path), MOUNTS) for path in ("/tmp/x", "/home/ada", "/home/with space/x")
    ]
    assert kinds == ["ext4", "nfs4", "lustre"]
    monkeypatch.setattr(temp_folder, "file_system", lambda _path: "nfs4")
    folder, notes = temp_folder.make_temp_folder({"TMPDIR": str(tmp_path)}, "rankscope-test-")
    assert folder.parent == tmp_path
    assert "network file system (nfs4)" in notes[0]
    folder, notes = temp_folder.make_temp_folder({"TMPDIR": "/no/such"}, "rankscope-test-")
    assert "TMPDIR=/no/such cannot be used" in notes[0]
    folder.rmdir()


def test_a_folder_that_is_lost_with_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "21 1 0:50 / / rw - overlay overlay rw\n22 21 0:51 / /etc rw - ext4 /dev/root rw\n"
    mounted = f"{own}23 21 0:52 / {tmp_path} rw - ext4 /dev/root rw\n"
    monkeypatch.setattr(temp_folder, "_CONTAINER_FILES", [str(tmp_path)])
    lost = temp_folder.lost_with_container
    assert lost(Path("/workspace/a"), own) == (
        "/workspace/a is in this container and is lost with it; start the container with a folder of the host in it "
        "(-v $PWD/reports:/reports), and give -o /reports/NAME"
    )
    assert (lost(Path("/workspace/a"), mounted) or "").endswith(f"name a mounted folder: -o {tmp_path}/NAME")
    assert lost(tmp_path / "a", mounted) is None
    assert lost(Path("/workspace/a"), MOUNTS) is None, "not a container's file system"
    monkeypatch.setattr(temp_folder, "_CONTAINER_FILES", [str(tmp_path / "none")])
    assert lost(Path("/workspace/a"), own) is None


def left(tmp_path: Path, log: str = "", **more: object) -> reports.Left:
    (tmp_path / "temp").mkdir(exist_ok=True)
    options: dict[str, object] = {"ranged": None, "ended_early": False, **more}
    target = tmp_path / "rank-00000.nsys-rep"
    return reports.collect_nsys(NSYS, target, tmp_path / "temp", log, **options)  # type: ignore[arg-type]


def test_a_report_for_each_range(tmp_path: Path) -> None:
    for name in ("rank-00000.1.nsys-rep", "rank-00000.2.nsys-rep", "rank-00000x.nsys-rep"):
        (tmp_path / name).write_text("x")
    assert [path.name for path in left(tmp_path).files] == ["rank-00000.1.nsys-rep", "rank-00000.2.nsys-rep"]


def test_a_report_that_nsys_put_elsewhere_is_brought_back(tmp_path: Path) -> None:
    (tmp_path / "temp").mkdir()
    (tmp_path / "temp" / "nsys-report-1.nsys-rep").write_text("x")
    found = left(tmp_path, "Failed to create 'r': No space left\n")
    assert found.files == (tmp_path / "rank-00000.nsys-rep",)
    assert "No space left" in found.notes[0]


def test_no_report_and_why(tmp_path: Path) -> None:
    assert (
        left(tmp_path, ranged="nvtx:a").why
        == "the capture range (nvtx:a) never opened, so nsys wrote no report"
    )
    assert left(tmp_path, "one\rtwo\n").why == "nsys wrote no report: two"
    assert left(tmp_path, ended_early=True).why == "nsys was killed before the report was complete"


def test_what_ncu_left(tmp_path: Path) -> None:
    target = tmp_path / "rank-00000.ncu-rep"
    kernels = "".join(f"{number}. kernel_{number}\n" for number in range(1, 26))
    nothing = f"==WARNING== No kernels were profiled.\nAvailable Kernels:\n{kernels}"
    why = reports.collect_ncu(target, nothing).why or ""
    assert why.startswith("no kernel matched -k. These ran:\n    kernel_1\n")
    assert why.endswith("and 5 more")
    refused = reports.collect_ncu(target, "==ERROR== ERR_NVGPUCTRPERM - no permission\n")
    assert refused.why == "ncu wrote no report: ERR_NVGPUCTRPERM - no permission"
    target.write_text("x")
    log = '==PROF== Profiling "a" - 0: 0%....100% - 9 passes\n'
    assert reports.collect_ncu(target, log).notes == ("ncu profiled 1 launches in 9 passes",)


FAKE_NSYS = """#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version 2023.4.4.54"; exit 0; fi
if [ "$1" = status ]; then echo "CPU Profiling Environment ($FAKE_SCOPE): Fail"; exit 0; fi
if [ "$2" = --help ]; then echo "--gpu-metrics-device$FAKE_LETTER="; exit 0; fi
"""
FAKE_SUDO = """#!/bin/sh
printf "%s\\n" "$*" >>"$FAKE_NOTED"
[ "$FAKE_PASSWORD" = ok ] && exit 0
echo "sudo: a password is required" >&2
exit 1
"""


@pytest.fixture
def ada(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str, str]]:
    """`profile --tool nsys` by a user who is not root, with fakes of nsys and sudo; its line, its messages, and what
    sudo was asked."""
    for name, script in (("nsys", FAKE_NSYS), ("sudo", FAKE_SUDO)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SCOPE", "system-wide")
    monkeypatch.setenv("FAKE_NOTED", str(tmp_path / "noted"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr(preflight, "has_driver", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def line(*words: str) -> tuple[str, str, str]:
        args = parsed("--tool", "nsys", "-o", str(tmp_path / "out"), *words)
        plan = plan_of(args, ("python",))
        request = tool_options.tool_request(args, plan.when)
        rank = ToolRank(plan, detect({}), request, Output(print, print))
        noted = tmp_path / "noted"
        return rank.command_line(), "\n".join(rank.notes), noted.read_text() if noted.exists() else ""

    return line


@pytest.mark.parametrize(
    ("words", "root"),
    [
        (("--run-as", "ada"), False),
        (("--run-as", "ada", "--sample", "process-tree"), False),
        (("--run-as", "ada", "--sample", "system-wide"), True),
        (("--run-as", "ada", "--gpu-metrics-device", "all"), True),
        (("--run-as", "ada", "--tool-arg=--gpu-metrics-devices=0"), True),
        (("--run-as", "bob"), True),
    ],
)
def test_nsys_as_root_by_what_is_asked(
    words: tuple[str, ...],
    root: bool,
    ada: Callable[..., tuple[str, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_PASSWORD", "ok")
    line, notes, noted = ada(*words)
    assert line.startswith("sudo -n -E env PATH=") == root
    assert (f"--run-as={words[1]}" in line) == root
    assert ("--run-as is left out" in notes) != root
    assert noted == ("-n -E env true\n" if root else "")


def test_counters_that_every_user_may_read(
    ada: Callable[..., tuple[str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "params"
    settings.write_text("RmProfilingAdminOnly: 0\n")
    monkeypatch.setattr("rankscope.capture.under_tool.preflight._DRIVER_SETTINGS", settings)
    line, _, _ = ada("--run-as", "ada", "--gpu-metrics-device", "all")
    assert not line.startswith("sudo")
    assert "--gpu-metrics-device=all" in line


def test_sudo_that_wants_a_password(
    ada: Callable[..., tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal the job is captured without what needs root; in a terminal sudo may ask."""
    line, notes, _ = ada("--run-as", "ada", "--gpu-metrics-device", "all", "--sample", "system-wide")
    assert not line.startswith("sudo")
    assert "--gpu-metrics-device" not in line
    assert "--sample=none" in line
    assert "sudo refuses (sudo: a password is required)" in notes
    with pytest.raises(CaptureError, match="cannot run the job as bob"):
        ada("--run-as", "bob")
    monkeypatch.setenv("FAKE_PASSWORD", "ok")
    with Path("/dev/ptmx").open("rb") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        line, _, noted = ada("--run-as", "bob")
    assert line.startswith("sudo -E env PATH=")
    assert noted.splitlines()[-1].startswith("-v -p [sudo] password for %u")


def test_the_counters_option_by_version(
    ada: Callable[..., tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--gpu-metrics-device=all" in ada("--gpu-metrics-device", "all")[0]
    monkeypatch.setenv("FAKE_LETTER", "s")
    assert "--gpu-metrics-devices=all" in ada("--gpu-metrics-devices", "all")[0]


# Says what nsys does when its helper process dies; the application may still be starting then.
LOST_AGENT = """#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version 2025.5.2"; exit 0; fi
echo start >>"$FAKE_NOTED"
starts=$(wc -l <"$FAKE_NOTED")
for word in "$@"; do
  case "$word" in --output=*) report=${word#--output=} ;; esac
  case "$word" in profile | -*) shift ;; *) break ;; esac
done
if [ "$starts" -le "$FAKE_REFUSALS" ]; then
  [ "$FAKE_LATE" = no ] || { sleep 0.4; exec "$@"; } &
  echo "End of file"
  exit 1
fi
echo content >"$report"
exec "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refusals", "late", "starts"), [(1, "no", 2), (1, "yes", 2), (9, "no", 2), (0, "no", 1)]
)
def test_nsys_that_loses_its_agent_is_started_once_more(
    refusals: int, late: str, starts: int, tmp_path: Path
) -> None:
    """The job runs once, whatever nsys does: also where nsys has gone and the job is only starting."""
    nsys = tmp_path / "nsys"
    nsys.write_text(LOST_AGENT)
    nsys.chmod(0o755)
    env = environment(FAKE_NOTED=str(tmp_path / "noted"), FAKE_REFUSALS=str(refusals), FAKE_LATE=late)
    job = [sys.executable, "-S", "-c", "import time; time.sleep(0.6); print('job ran', flush=True)"]
    done = subprocess.run(
        [*PROFILE, "--tool", "nsys", "--nsys", str(nsys), "-o", "out", *job],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stdout == "job ran\n", done.stderr
    assert (tmp_path / "noted").read_text().count("start") == starts
    refused = "nsys refused to start the job (End of file); "
    assert (f"{refused}trying again once more" in done.stderr) == (refusals > 0)
    assert (f"{refused}the job runs without it" in done.stderr) == (refusals > 1)
