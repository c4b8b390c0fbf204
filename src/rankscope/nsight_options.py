"""The options of `nsys profile` and ncu as those of `rankscope profile`: each is taken over, or refused with a reason.

From `nsys profile --help` of 2023.4 and the user guide's table of 2026.2; `ncu --help` of 2024.1 and 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Taken(NamedTuple):
    """What becomes of some words of a tool's command line."""

    words: list[str]
    """For `rankscope profile`."""
    refused: list[tuple[str, str]]
    """The options that are left out, each with the reason."""
    output: str | None
    """The value of --output or --export: a report's name, where rankscope has a folder."""
    application: list[str]
    """The words from the first that is no option."""


# Options that rankscope has under the same name.
_SAME = {
    "nsys": "trace sample run-as gpu-metrics-device gpu-metrics-devices cuda-memory-usage nic-metrics show-output "
    "stats",
    "ncu": "kernel-name kernel-name-base launch-skip launch-count filter-mode set clock-control",
}
# Values of those for which rankscope has the option; others are passed to the tool.
_VALUES = {
    "sample": ("process-tree", "system-wide", "none"),
    "nic-metrics": ("true", "false"),
    "set": ("roofline", "detailed", "full"),
    "clock-control": ("base", "none"),
}
# Options that are passed to the tool as they are. A name with a * stands for all that begin so.
_PASSED = {
    "nsys": """backtrace clock-frequency-changes cpu-* cpuctxsw cuda-* cudabacktrace dask debug-symbols enable env-var
        event-sample event-sampling* flush-on flush-on-cudaprofilerstop ftrace ftrace-keep-user-config gds-*
        gpu-metrics-frequency gpu-metrics-set gpu-video-device gpuctxsw ib-* mpi-impl nvtx-domain-include
        nvtx-domain-exclude os-events osrt-* python-* pytorch resolve-symbols samples-per-backtrace sampling-*
        soc-metrics* syscall trace-fork-before-exec wait after-collection-start""",
    "ncu": """apply-rules cache-control call-stack call-stack-type check-exit-code communicator* config-file
        config-file-path devices disable-extra-suffixes disable-pm-warp-sampling disable-profiler-start-stop
        graph-profiling import-source injection-path-* kernel-id launch-skip-before-match lockstep-* max-connections
        metrics native-* nvtx nvtx-* pipeline-boost-state pm-sampling-* port preload-library python-* range-filter
        range-replay-options rename-kernels* rule section section-folder section-folder-recursive source-folders
        support-32bit target-processes target-processes-filter verbose warp-samp*""",
}
_ELSEWHERE = "It is for Windows, graphics or embedded systems, which no training job has"
_PRINTS = "It prints and profiles nothing"
_PAGE = "It is about what ncu prints; the report is printed by: rankscope stats RUN -r ncu"
_REPLAY = "It starts the job again for each pass, while the other ranks wait"
_NAME = "rankscope names the reports by rank, in one folder: -o DIR"
_REFUSED = {
    "nsys": {
        "help version": _PRINTS,
        "accelerator-trace duration-frames dx* etw-provider injection-use-detours isr opengl-gpu-workload "
        "process-scope qnx-* retain-etw-files start-frame-index vsync vulkan-gpu-workload wddm-* xhv-*": _ELSEWHERE,
        "after-report-ready": "rankscope moves the report when nsys has ended: run the command after rankscope profile",
        "auto-report-name": _NAME,
        "command-file": "The options in that file are not read: write them in the command",
        "export": "rankscope reads the report itself; `nsys export` makes other formats from it",
        "hotkey-capture": "A job has no keyboard: --on-signal USR2 records when a signal comes",
        "session-new": "rankscope ends the session with the job, and needs no name for it",
        "start-later": "Nobody would run `nsys start`: --steps, --after or --on-signal begin later",
    },
    "ncu": {
        "help version list-* query-* chips section-folder-restore": _PRINTS,
        "csv page print-* details-all resolve-source-file": _PAGE,
        "mode hostname": "rankscope starts the program and cannot attach to it later",
        "import open-in-ui": "It reads a report: rankscope stats RUN -r ncu",
        "app-replay-*": _REPLAY,
        "log-file": "rankscope reads ncu's log, and keeps it in the run folder",
        "null-stdin": "The job keeps its stdin",
        "quiet": "rankscope reads what ncu says, and does not show it",
    },
}
_SHORT = {
    "nsys": """b=backtrace c=capture-range d=duration e=env-var f=force-overwrite h=help n=inherit-environment o=output
        p=nvtx-capture s=sample t=trace v=version w=show-output x=stop-on-exit Y=start-later y=delay""",
    "ncu": """c=launch-count f=force-overwrite h=help i=import k=kernel-name o=export p=port s=launch-skip v=version""",
}
# ncu's options without a value; of nsys, only help and version may have none.
_FLAGS = {
    "nsys": "help version",
    "ncu": """help version call-stack nvtx support-32bit null-stdin list-* section-folder-restore query-metrics
        disable-* quiet verbose force-overwrite open-in-ui csv print-fp print-rule-details details-all
        lockstep-kernel-launch""",
}
# Options that rankscope spells otherwise.
_SPECIAL = {
    "nsys": """output force-overwrite delay duration kill stop-on-exit inherit-environment discard-environment
        capture-range capture-range-end nvtx-capture""",
    "ncu": "export force-overwrite profile-from-start kill replay-mode",
}
_OFF = ("off", "no", "0", "false")


def take(tool: str, words: Sequence[str]) -> Taken:
    """The words after `nsys profile`, or after `ncu`."""
    given: dict[str, str] = {}
    taken = Taken([], [], None, [])
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        name, value, rest = first_option(tool, rest)
        if name in ("output", "export") and (tool == "ncu" or name == "output"):
            taken = taken._replace(output=value)
        elif name in ("capture-range", "capture-range-end", "nvtx-capture") and tool == "nsys":
            given[name] = value
        else:
            _take_option(tool, name, value, taken)
    _take_range(given, taken)
    return taken._replace(application=rest[1:] if rest[:1] == ["--"] else rest)


def first_option(tool: str, words: list[str]) -> tuple[str, str, list[str]]:
    """Its long name without the dashes, its value, and the words after it."""
    word, rest = words[0], words[1:]
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
    else:
        shorts = dict(pair.split("=") for pair in _SHORT[tool].split())
        name, value = shorts.get(word[1], word[1]), word[2:].removeprefix("=")
        equals = value
    if not equals and not _listed(name, _FLAGS[tool]) and rest:
        return name, rest[0], rest[1:]
    return name, value, rest


def is_option_of(tool: str, word: str) -> bool:
    """Whether the tool has this option, as far as this module knows."""
    name = first_option(tool, [word])[0]
    return _listed(name, " ".join((_SAME[tool], _PASSED[tool], _SPECIAL[tool], *_REFUSED[tool])))


def _take_option(tool: str, name: str, value: str, taken: Taken) -> None:
    if _listed(name, _SPECIAL[tool]):
        words, reason = _special(tool, name, value)
    elif reason := next((why for names, why in _REFUSED[tool].items() if _listed(name, names)), ""):
        words = []
        if value in ("none", "false"):
            reason = ""
    elif _listed(name, _SAME[tool]) and value in _VALUES.get(name, (value,)):
        words = [f"--{name}={value}"]
    elif _listed(name, _PASSED[tool]) or _listed(name, _SAME[tool]):
        words = [f"--tool-arg=--{name}" + (f"={value}" if value else "")]
    else:
        words, reason = [], f"It is no option of {tool} that rankscope knows; --tool-arg passes it unchanged"
    taken.words.extend(words)
    if reason:
        taken.refused.append((f"--{name}" + (f"={value}" if value else ""), reason))


def _special(tool: str, name: str, value: str) -> tuple[list[str], str]:
    """Options that rankscope spells otherwise: its words, and why it refuses the option or ''."""
    off = value in _OFF
    if name == "force-overwrite":
        return ([] if off else ["-f"]), ""
    if name == "profile-from-start":
        return (["-c", "cudaProfilerApi"] if off else []), ""
    if name in ("delay", "duration"):
        return ["--after" if name == "delay" else "--for", f"{value}s"], ""
    if name == "kill":
        harmless = off or value == "none"
        return [], "" if harmless else "rankscope lets the job go on when the recording has ended"
    if name == "replay-mode":
        again = value in ("application", "app-range")
        return ([] if again else [f"--tool-arg=--replay-mode={value}"]), _REPLAY if again else ""
    if name == "stop-on-exit":
        return [], "rankscope ends the recording with the job" if off else ""
    if name == "inherit-environment" and not off:
        return [], ""
    return [], "The job gets its environment: the launcher's variables are in it"


def _take_range(given: dict[str, str], taken: Taken) -> None:
    """--capture-range, with what belongs to it, is -c."""
    kind, end = given.get("capture-range", "none"), given.get("capture-range-end", "stop")
    if kind == "nvtx":
        taken.words.extend(["-c", f"nvtx:{given.get('nvtx-capture', '')}"])
    elif kind == "cudaProfilerApi":
        taken.words.extend(["-c", kind])
    elif kind != "none":
        reason = "rankscope waits for cudaProfilerApi or an NVTX range; --on-signal USR2 records when a signal comes"
        taken.refused.append((f"--capture-range={kind}", reason))
    if "nvtx-capture" in given and kind != "nvtx":
        taken.refused.append(("--nvtx-capture", "It belongs to a capture range: -c nvtx:RANGE[@DOMAIN]"))
    if end == "none":
        taken.words.append("--tool-arg=--capture-range-end=none")
    elif end.startswith("repeat"):
        reason = (
            "-c records one range; a schedule (--wait, --active, --repeat N) records several windows of steps"
        )
        taken.refused.append((f"--capture-range-end={end}", reason))


def _listed(name: str, names: str) -> bool:
    return any(
        name.startswith(listed[:-1]) if listed.endswith("*") else name == listed for listed in names.split()
    )
