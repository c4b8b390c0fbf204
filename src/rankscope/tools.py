"""nsys and ncu: where they are, their versions, and their command lines, which only this module builds."""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.errors import ToolError
from rankscope.files import unique_name
from rankscope.records import dataclass

_PRODUCTS = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_VERSION = re.compile(r"[Vv]ersion (\d+(?:\.\d+)+)")
_IMPORTER_VERSION = re.compile(r"Nsight Systems (\d+(?:\.\d+)+)")
_ANSWER_SECONDS = 30
_READ_SECONDS = 600
_IMPORT_SECONDS = 1800
_LARGEST_CELL = 16 << 20

NCU_VARIABLE = "RANKSCOPE_NCU"
"""Carries --ncu PATH to the processes that read files."""
NSYS_VARIABLE = "RANKSCOPE_NSYS"
"""The same for --nsys PATH."""


@dataclass(frozen=True)
class Tool:
    """One installed profiler."""

    name: str
    path: Path
    version: tuple[int, ...]
    """As the tool prints it: (2023, 4, 4, 54); empty when its output has no version."""


def find_tool(name: str, given: str | None = None) -> Tool:
    """`nsys` or `ncu`: the given path, else the first on PATH."""
    path = shutil.which(given or name)
    if path is None:
        product = _PRODUCTS[name]
        page = f"https://developer.nvidia.com/{product.lower().replace(' ', '-')}"
        raise ToolError(
            f"cannot find {given or name}",
            why="There is no such program." if given else f"{product} is not on PATH.",
            hint=f"Load its module, install {product} ({page}), or give its path: --{name} PATH",
        )
    return Tool(name, Path(path), _version_in(_VERSION, _run([path, "--version"]).stdout))


def _version_in(pattern: re.Pattern[str], text: str) -> tuple[int, ...]:
    match = pattern.search(text)
    return tuple(map(int, match[1].split("."))) if match else ()


def _run(
    words: Sequence[str | Path], seconds: float = _ANSWER_SECONDS, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=seconds, env=env, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        program = words[0]
        raise ToolError(
            f"cannot run {program}", why=f"{error}.", hint=f"Try it: {program} --version"
        ) from error


def _help_has(words: Sequence[str], text: str) -> bool:
    """Whether the help that this command prints has the text: options differ between versions."""
    try:
        answer = _run([*words, "--help"])
    except ToolError:
        return False
    return text in answer.stdout + answer.stderr


def nsys_export(tool: Tool, report: Path, output: Path) -> list[str]:
    """The command that writes a report as sqlite."""
    options = ["--type", "sqlite", "--force-overwrite", "true", "--output", str(output)]
    return [str(tool.path), "export", *options, str(report)]


def ncu_raw_page(tool: Tool, report: Path) -> list[str]:
    """The command that prints a whole report as csv, in base units (without prefixes, so without rounding)."""
    return [str(tool.path), "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]


class Launch(NamedTuple):
    """A kernel's name and the size it was launched with."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]


def ncu_launches(tool: Tool, report: Path) -> list[Launch]:
    """The launches that a report of ncu has, in their order. Needs only the standard library, as in a job."""
    return read_ncu_launches(_run(ncu_raw_page(tool, report), _READ_SECONDS).stdout)


def read_ncu_launches(page: str) -> list[Launch]:
    """The launches of a raw page. The row below its header has units, and no ID."""
    csv.field_size_limit(_LARGEST_CELL)
    lines = iter(page.splitlines(keepends=True))
    header = next((line for line in lines if line.startswith('"ID"')), "")
    rows = csv.DictReader(lines, next(csv.reader([header]), []))
    return [
        Launch(row["Kernel Name"], _size(row["Grid Size"]), _size(row["Block Size"]))
        for row in rows
        if row.get("ID")
    ]


def _size(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


# The default of --trace. Without osrt, which records every blocking libc call of every thread: for a small script with
# two DataLoader workers the report is 50 times as large and the run takes twice as long.
NSYS_TRACE = "cuda,nvtx"
# The sets of `ncu --set`, and how many times each kernel runs for it (ncu 2025.3 on an H200).
NCU_PASSES = {"roofline": 17, "detailed": 20, "full": 38}
# Kernels that wait for other ranks. ncu runs a kernel several times on one rank alone, so these would never end.
NCU_NEVER = "nccl|rccl|oneccl|msccl|nvshmem|cross_device_reduce"
_NCU_ALL = f"regex:^(?!.*({NCU_NEVER}))"


@dataclass(frozen=True, kw_only=True)
class NsysOptions:
    """Options of `nsys profile`, under its own names."""

    trace: str = NSYS_TRACE
    sample: str = "none"
    """CPU samples. With torch loaded, ten seconds give 2.4 GB, against 2 MB without samples."""
    capture_range: str | None = None
    """cudaProfilerApi, or nvtx:RANGE[@DOMAIN]."""
    captures: int = 1
    """How many ranges are recorded, each to a report of its own; 0 is all of them."""
    delay_s: int = 0
    duration_s: int = 0
    gpu_metrics_device: str | None = None
    gpu_metrics_option: str = "--gpu-metrics-device"
    """How this version spells it: `gpu_metrics_option`."""
    cuda_memory_usage: bool = False
    nic_metrics: bool = False
    show_output: bool = True
    """Whether the application's output is shown; otherwise only the report has it."""
    run_as: str | None = None
    overwrite: bool = False
    extra: tuple[str, ...] = ()

    def traces(self, what: str) -> bool:
        """Whether nsys is told to record this: cuda, nvtx, …"""
        return what in given_options("nsys", self.extra).get("--trace", self.trace).split(",")

    @property
    def shows_output(self) -> bool:
        return self.show_output and given_options("nsys", self.extra).get("--show-output") != "false"

    @property
    def has_extras(self) -> bool:
        """Whether an option is set for which nsys may refuse to start the application."""
        return bool(self.gpu_metrics_device or self.nic_metrics or self.extra)


@dataclass(frozen=True, kw_only=True)
class NcuOptions:
    """Options of ncu, under its own names."""

    kernels: str | None = None
    """A name, or regex:… (`any_kernel` of several); None is every kernel but those that wait for other ranks."""
    set: str = "roofline"
    kernel_name_base: str = "function"
    """What ``kernels`` is compared with. "function": the name without namespaces, template arguments and parameters,
    in which versions differ; or demangled, mangled."""
    launch_skip: int = 0
    """How many matching launches come before the first that is profiled."""
    launch_count: int = 0
    """How many kernels are profiled; 0 is all that match."""
    filter_mode: str | None = None
    """per-launch-config: skip and count apply to each grid and block on its own; per-gpu; None is global."""
    clock_control: str = "base"
    ranged: bool = False
    """Only between cudaProfilerStart and cudaProfilerStop."""
    overwrite: bool = False
    extra: tuple[str, ...] = ()

    @property
    def used_set(self) -> str:
        """The sections that are measured: --tool-arg=--set replaces ours."""
        return given_options("ncu", self.extra).get("--set", self.set)

    @property
    def used_count(self) -> str:
        """How many kernels are profiled, as the option in effect says; "0" is all that match."""
        return given_options("ncu", self.extra).get("--launch-count", str(self.launch_count))


def any_kernel(names: Sequence[str]) -> str | None:
    """The filter for kernels of any of these names (NAME, or regex:…), as one: ncu takes a single one."""
    if len(names) < 2:
        return names[0] if names else None
    patterns = [
        name.removeprefix("regex:") if name.startswith("regex:") else f"^{re.escape(name)}$" for name in names
    ]
    return "regex:" + "|".join(f"({pattern})" for pattern in patterns)


def nsys_profile(program: str, options: NsysOptions, output: Path, application: list[str]) -> list[str]:
    """The command that runs an application under nsys."""
    given = given_options("nsys", options.extra)
    kind, _, name = (options.capture_range or "").partition(":")
    repeat = f"repeat:{options.captures}" if options.captures else "repeat"
    ours: dict[str, str | int | None] = {
        "--trace": options.trace,
        "--sample": options.sample,
        # With samples, nsys sets this option itself.
        "--cpuctxsw": "none" if given.get("--sample", options.sample) == "none" else None,
        # End with the application: do not wait for processes that it leaves in the background.
        "--wait": "primary",
        # By default nsys ends the application when a range or a duration ends.
        "--kill": "none",
        "--capture-range": kind,
        "--capture-range-end": kind and ("stop" if options.captures == 1 else repeat),
        "--nvtx-capture": name,
        "--delay": options.delay_s,
        "--duration": options.duration_s,
        options.gpu_metrics_option: options.gpu_metrics_device,
        "--cuda-memory-usage": "true" if options.cuda_memory_usage else None,
        "--nic-metrics": "true" if options.nic_metrics else None,
        "--show-output": None if options.show_output else "false",
        "--run-as": options.run_as,
        "--force-overwrite": "true" if options.overwrite else None,
    }
    if "--capture-range" in given:
        given |= dict.fromkeys(("--capture-range-end", "--nvtx-capture"), "")
    words = [program, "profile", *_words(ours, given), *options.extra, f"--output={_escaped(output)}"]
    return [*words, *application]


def _words(ours: Mapping[str, str | int | None], given: Collection[str]) -> list[str]:
    """Our options that have a value, without those that the user has given: some are refused when given twice."""
    return [f"{name}={value}" for name, value in ours.items() if value and name not in given]


def nsys_environment(options: NsysOptions) -> dict[str, str]:
    """Variables that nsys's libraries read in the application."""
    by_name = options.capture_range is not None and options.capture_range.startswith("nvtx")
    # By default only ranges whose names were registered open a capture; torch and Python register none.
    return {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"} if by_name else {}


def refuses_cpu_profiling(program: str, scope: str) -> bool:
    """Whether nsys asks for root for samples of this scope, or does not answer; older versions name no scope."""
    try:
        answer = _run([program, "status", "--environment"]).stdout
    except ToolError:
        return True
    lines = [line for line in answer.splitlines() if "Environment" in line and "Fail" in line]
    return any(f"({scope})" in line or "(" not in line for line in lines)


def nsys_lost_its_agent(log: str) -> bool:
    """Whether nsys gave up because its helper process closed their connection, which a second start may not meet."""
    return "End of file" in log


STREAM_SUFFIX = ".qdstrm"
"""What nsys records, before its importer makes a report of it. It stays when nsys is killed, and where the importer is
not installed."""
_INSTALLATIONS = Path("/opt/nvidia/nsight-systems")
_STREAM_VERSION = re.compile(rb"NVIDIA Nsight Systems Stream (\d+(?:\.\d+)+)")


def stream_version(stream: Path) -> tuple[int, ...]:
    """The version of nsys that wrote a .qdstrm; empty where it is not in the file's first bytes."""
    with stream.open("rb") as file:
        match = _STREAM_VERSION.search(file.read(200))
    return tuple(map(int, match[1].split(b"."))) if match else ()


def nsys_importer(program: Path, version: tuple[int, ...] = ()) -> Tool | None:
    """QdstrmImporter, which makes a report of a .qdstrm of its own version; it is beside nsys's libraries.

    Of several installations the one of ``version``; without such, the first that is found.
    """
    here = program.resolve().parent
    folders = [here, here.parent, here.parent.parent]
    # Versions are installed side by side: VERSION/target-linux-x64/nsys, VERSION/host-linux-x64/QdstrmImporter.
    folders += [
        other for parent in (here.parent.parent, _INSTALLATIONS) for other in sorted(parent.glob("[0-9]*"))
    ]
    paths = [path for folder in folders for path in sorted(folder.glob("host-linux-*/QdstrmImporter"))]
    paths += [Path(named) for named in [shutil.which("QdstrmImporter")] if named]
    first = None
    for path in dict.fromkeys(paths):
        answer = _run_importer(path, ["--version"])
        importer = Tool("QdstrmImporter", path, _version_in(_IMPORTER_VERSION, answer))
        if not version or importer.version == version:
            return importer
        first = first or importer
    return first


def import_command(stream: Path, report: Path) -> str:
    """For a shell, where Nsight Systems is installed in full."""
    return shlex.join(["QdstrmImporter", "-i", str(stream), "-o", str(report)])


def import_stream(importer: Tool, stream: Path, report: Path) -> str:
    """Make a report of a .qdstrm; "" or why there is none. An existing report is not overwritten."""
    unfinished = report.with_name(f".{report.stem}-{unique_name()}{report.suffix}")
    answer = _run_importer(importer.path, ["-i", str(stream), "-o", str(unfinished)])
    if not (unfinished.is_file() and unfinished.stat().st_size):
        lines = [line.strip() for line in answer.replace("\r", "\n").splitlines() if line.strip()]
        unfinished.unlink(missing_ok=True)
        return lines[-1] if lines else "it gives no reason"
    try:
        os.link(unfinished, report)  # fails where there is one already
    except OSError:
        if not report.exists():  # a file system without links
            unfinished.replace(report)
    unfinished.unlink(missing_ok=True)
    return ""


def _run_importer(importer: Path, words: list[str]) -> str:
    """What QdstrmImporter prints. It finds its libraries (Qt and others) only in its own folder."""
    paths = [str(importer.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    env = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}
    try:
        done = _run([importer, *words], _IMPORT_SECONDS, env)
    except ToolError as error:
        return error.why
    return done.stdout + done.stderr


def ncu_profile(
    program: str, options: NcuOptions, output: Path, log: Path | None, application: list[str]
) -> list[str]:
    """The command that runs an application under ncu."""
    ours: dict[str, str | int | None] = {
        "--set": options.set,
        "--kernel-name-base": options.kernel_name_base,
        "--kernel-name": options.kernels or _NCU_ALL,
        "--filter-mode": options.filter_mode,
        "--launch-skip": options.launch_skip,
        "--launch-count": options.launch_count,
        "--clock-control": options.clock_control,
        "--profile-from-start": "off" if options.ranged else None,
        "--log-file": _escaped(log) if log else None,
    }
    given = given_options("ncu", options.extra)
    overwrite = ["--force-overwrite"] if options.overwrite and "--force-overwrite" not in given else []
    words = [program, *_words(ours, given), *overwrite, *options.extra]
    return [*words, f"--export={_escaped(output)}", *application]


# The short names of options that rankscope writes too.
_SHORT = {
    "nsys": {
        "-t": "--trace",
        "-s": "--sample",
        "-c": "--capture-range",
        "-p": "--nvtx-capture",
        "-y": "--delay",
        "-d": "--duration",
        "-f": "--force-overwrite",
        "-o": "--output",
    },
    "ncu": {
        "-k": "--kernel-name",
        "-s": "--launch-skip",
        "-c": "--launch-count",
        "-f": "--force-overwrite",
        "-o": "--export",
    },
}
# Where the report goes is rankscope's own: it looks for the file there.
NOT_REPLACED = {"nsys": ("--output",), "ncu": ("--export", "--log-file")}


def given_options(tool: str, extra: Sequence[str]) -> dict[str, str]:
    """The options among words for a tool, by their long name, with their value; "" where there is none."""
    values = {}
    for word, following in zip(extra, [*extra, ""][1:], strict=True):
        if not word.startswith("-"):
            continue
        if word.startswith("--"):
            name, _, value = word.partition("=")
        else:
            name, value = _SHORT[tool].get(word[:2], word[:2]), word[2:].removeprefix("=")
        values[name] = value or ("" if following.startswith("-") else following)
    return values


_FIRST_WITH_CUDA_13 = (2025, 3)
_DRIVER_OF_CUDA_13 = 580


def nsys_loses_kernels(tool: Tool, driver: int) -> bool:
    """Whether this nsys stops recording kernels in a run that it records from the start.

    Seen with 2023.4 under CUDA 13: none after the first call of cuBLAS. Inside a capture range it records them all.
    """
    return bool(tool.version) and tool.version < _FIRST_WITH_CUDA_13 and driver >= _DRIVER_OF_CUDA_13


def gpu_metrics_option(program: str) -> str:
    """--gpu-metrics-device, which newer versions of nsys call --gpu-metrics-devices."""
    newer = "--gpu-metrics-devices"
    return newer if _help_has([program, "profile"], newer) else newer.removesuffix("s")


def ncu_counts_by_size(program: str) -> bool:
    """Whether this ncu has --filter-mode per-launch-config."""
    return _help_has([program], "per-launch-config")


def _escaped(path: Path) -> str:
    """Both tools replace %p, %h, %q{…} in file names; ours are expanded already."""
    return str(path).replace("%", "%%")


_NCU_KERNEL = re.compile(r'==PROF== Profiling "(?P<name>.*?)".*?(?P<passes>\d+) pass', re.DOTALL)
_NCU_AVAILABLE = re.compile(r"^\s*(?:\d+\.|[-*])\s*(?P<name>\S.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class NcuLog:
    """The log of an ncu run."""

    profiled: tuple[tuple[str, int], ...]
    """Each profiled launch: kernel, passes."""
    available: tuple[str, ...]
    """The kernels that ran, which ncu lists when none of them matched."""
    errors: tuple[str, ...]
    nothing: bool
    """ncu ran, but no launch passed its filter."""


def read_ncu_log(text: str) -> NcuLog:
    profiled = [(match["name"], int(match["passes"])) for match in _NCU_KERNEL.finditer(text)]
    _, nothing, rest = text.partition("No kernels were profiled")
    available = [match["name"] for match in _NCU_AVAILABLE.finditer(rest)] if nothing else []
    errors = [line.strip() for line in text.splitlines() if line.startswith("==ERROR==")]
    return NcuLog(tuple(profiled), tuple(dict.fromkeys(available)), tuple(errors), bool(nothing))
