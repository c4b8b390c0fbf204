"""nsys and ncu: where they are, their versions, and their command lines, which only this module builds."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rankscope.errors import ToolError

_PRODUCTS = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_VERSION = re.compile(r"[Vv]ersion (\d+(?:\.\d+)+)")
_ANSWER_SECONDS = 30

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
    found = shutil.which(given or name)
    if found is None:
        raise ToolError(
            f"cannot find {given or name}",
            why="There is no such program." if given else f"{_PRODUCTS[name]} is not on PATH.",
            hint=f"Load its module or install {_PRODUCTS[name]}, or give its path: --{name} PATH",
        )
    return Tool(name, Path(found), _version(Path(found)))


def _version(path: Path) -> tuple[int, ...]:
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"cannot run {path}", why=f"{error}.", hint=f"Try it: {path} --version") from error
    match = _VERSION.search(answer.stdout)
    return tuple(map(int, match[1].split("."))) if match else ()


def nsys_export(tool: Tool, report: Path, output: Path) -> list[str]:
    """The command that writes a report as sqlite."""
    options = ["--type", "sqlite", "--force-overwrite", "true", "--output", str(output)]
    return [str(tool.path), "export", *options, str(report)]


def ncu_raw_page(tool: Tool, report: Path) -> list[str]:
    """The command that prints a whole report as csv, in base units (without prefixes, so without rounding)."""
    return [str(tool.path), "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]


# The default of --trace. Without osrt, which records every blocking libc call of every thread: for a small script with
# two DataLoader workers the report is 50 times as large and the run takes twice as long.
NSYS_TRACE = "cuda,nvtx"
# The sets of `ncu --set`, and how many times each kernel runs for it (ncu 2025.3 on an H200).
NCU_PASSES = {"roofline": 17, "detailed": 20, "full": 38}
# Kernels that wait for other ranks. ncu runs a kernel several times on one rank alone, so these would never end.
NCU_NEVER = "nccl|rccl|oneccl|msccl|nvshmem|cross_device_reduce"


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
    cuda_memory_usage: bool = False
    nic_metrics: bool = False
    run_as: str | None = None
    overwrite: bool = False
    extra: tuple[str, ...] = ()

    @property
    def has_extras(self) -> bool:
        """Whether an option is set for which nsys may refuse to start the application."""
        return bool(self.gpu_metrics_device or self.nic_metrics or self.extra)


@dataclass(frozen=True, kw_only=True)
class NcuOptions:
    """Options of ncu, under its own names."""

    kernels: str | None = None
    """A name, or regex:…; None is every kernel but those that wait for other ranks."""
    section_set: str = "roofline"
    launch_count: int = 0
    """How many kernels are profiled; 0 is all that match."""
    clock_control: str = "base"
    ranged: bool = False
    """Only between cudaProfilerStart and cudaProfilerStop."""
    overwrite: bool = False
    extra: tuple[str, ...] = ()


def nsys_profile(program: str, options: NsysOptions, output: Path, application: list[str]) -> list[str]:
    """The command that runs an application under nsys."""
    words = [
        program,
        "profile",
        f"--trace={options.trace}",
        f"--sample={options.sample}",
        # With samples, nsys sets this option itself.
        *(["--cpuctxsw=none"] if options.sample == "none" else []),
        # End with the application: do not wait for processes that it leaves in the background.
        "--wait=primary",
        # By default nsys ends the application when a range or a duration ends.
        "--kill=none",
        *_nsys_range(options),
        *([f"--gpu-metrics-device={options.gpu_metrics_device}"] if options.gpu_metrics_device else []),
        *(["--cuda-memory-usage=true"] if options.cuda_memory_usage else []),
        *(["--nic-metrics=true"] if options.nic_metrics else []),
        *([f"--run-as={options.run_as}"] if options.run_as else []),
        *(["--force-overwrite=true"] if options.overwrite else []),
        *options.extra,
        f"--output={_escaped(output)}",
    ]
    return [*words, *application]


def _nsys_range(options: NsysOptions) -> list[str]:
    words = []
    if options.capture_range is not None:
        kind, _, name = options.capture_range.partition(":")
        end = (
            "stop"
            if options.captures == 1
            else f"repeat:{options.captures}"
            if options.captures
            else "repeat"
        )
        words += [f"--capture-range={kind}", f"--capture-range-end={end}"]
        words += [f"--nvtx-capture={name}"] if kind == "nvtx" else []
    words += [f"--delay={options.delay_s}"] if options.delay_s else []
    words += [f"--duration={options.duration_s}"] if options.duration_s else []
    return words


def nsys_environment(options: NsysOptions) -> dict[str, str]:
    """Variables that nsys's libraries read in the application."""
    by_name = options.capture_range is not None and options.capture_range.startswith("nvtx")
    # By default only ranges whose names were registered open a capture; torch and Python register none.
    return {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"} if by_name else {}


def nsys_check_privileges(program: str) -> list[str]:
    """The command that prints what nsys may record here; `refuses_cpu_profiling` reads its output."""
    return [program, "status", "--environment"]


def refuses_cpu_profiling(answer: str) -> bool:
    """Whether `nsys status --environment` asks for root."""
    return any("Environment" in line and "Fail" in line for line in answer.splitlines())


def nsys_importer(program: Path) -> Path | None:
    """QdstrmImporter, which makes a report of the .qdstrm that a killed nsys leaves; it is beside nsys's libraries."""
    here = program.resolve().parent
    for folder in (here, here.parent, here.parent.parent):
        for found in sorted(folder.glob("host-linux-*/QdstrmImporter")):
            return found
    named = shutil.which("QdstrmImporter")
    return Path(named) if named else None


def import_qdstrm(importer: str | Path, stream: Path, report: Path) -> list[str]:
    return [str(importer), "-i", str(stream), "-o", str(report)]


def ncu_profile(
    program: str, options: NcuOptions, output: Path, log: Path | None, application: list[str]
) -> list[str]:
    """The command that runs an application under ncu."""
    kernels = options.kernels or f"regex:^(?!.*({NCU_NEVER}))"
    words = [
        program,
        f"--set={options.section_set}",
        # "function": the name without namespaces, template arguments and parameters, in which versions differ.
        "--kernel-name-base=function",
        f"--kernel-name={kernels}",
        *([f"--launch-count={options.launch_count}"] if options.launch_count else []),
        f"--clock-control={options.clock_control}",
        *(["--profile-from-start=off"] if options.ranged else []),
        *(["--force-overwrite"] if options.overwrite else []),
        *([f"--log-file={_escaped(log)}"] if log else []),
        *options.extra,
        f"--export={_escaped(output)}",
    ]
    return [*words, *application]


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


def read_ncu_log(text: str) -> NcuLog:
    profiled = [(match["name"], int(match["passes"])) for match in _NCU_KERNEL.finditer(text)]
    _, nothing, rest = text.partition("No kernels were profiled")
    available = [match["name"] for match in _NCU_AVAILABLE.finditer(rest)] if nothing else []
    errors = [line.strip() for line in text.splitlines() if line.startswith("==ERROR==")]
    return NcuLog(tuple(profiled), tuple(dict.fromkeys(available)), tuple(errors))
