"""A batch job as plain data, independent of the scheduler; and how its options are parsed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rankscope.errors import UsageError

_PLAIN = r"\w[\w.:+@=,/-]*"
_PATH = r"[\w.:+@=,/%~-]+"
_END_LEAD_S = 60
_WITHOUT_OPTION = ("select", "place", "keep")
"""Of a site's file."""
RUN = "{run}"
"""Stands for the run folder in the words of a command."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One start of the launcher: on how many nodes, with which command on every rank."""

    words: tuple[str, ...]
    nodes: int
    ppn: int
    profiled: bool = True
    """The words are a COMMAND for `rankscope profile`; otherwise they run as they are."""
    output: str | None = None
    """A file name in the run folder that takes the step's stdout."""
    folder: str = ""
    """A folder in the run folder that takes the step's profile; several steps have one each."""
    labelled: bool = True
    """Whether every line of output starts with its rank."""
    exported: tuple[str, ...] = ()
    """Variables of the script that the ranks need."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ppn


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that goes into a job script."""

    name: str
    nodes: int
    ppn: int
    walltime_s: int
    launcher: str
    """What starts the ranks."""
    launcher_outer: str
    """What starts one process on every node: the launcher itself, except for torchrun."""
    steps: tuple[Step, ...]
    profile_words: tuple[str, ...] = ()
    """Options of `rankscope profile`, as given."""
    run: str | None = None
    force: bool = False
    queue: str | None = None
    account: str | None = None
    filesystems: str | None = None
    select: str | None = None
    place: str | None = None
    keep: str | None = None
    constraint: str | None = None
    gres: str | None = None
    gpus_per_node: str | None = None
    directives: tuple[str, ...] = ()
    """Further directives as the scheduler writes them; they come last, so they override ours."""
    stdout: str | None = None
    """The job's output file; %j in it is the job's id."""
    stderr: str | None = None
    modules: tuple[str, ...] = ()
    conda: str | None = None
    venv: str | None = None
    tmpdir: str = "/tmp"
    env: dict[str, str] = field(default_factory=dict)
    cpu_bind: str | None = None
    login: bool = False
    """Whether the shell reads /etc/profile, where some sites define `module`."""
    summaries: tuple[tuple[str, ...], ...] = (("rankscope", "stats", RUN),)
    """The commands that show the results at the end; RUN in them is the run folder."""

    @property
    def uses_rankscope(self) -> bool:
        """Not for --tool none: the job must run where rankscope is not installed."""
        return bool(self.summaries) or any(step.profiled for step in self.steps)

    def run_folder(self, job: str) -> str:
        """Seen from the folder that the job is submitted from."""
        return self.run or f"rankscope-{self.name}-{job}"

    @property
    def walltime(self) -> str:
        minutes, seconds = divmod(self.walltime_s, 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours:02d}:{minutes:02d}:{seconds:02d}"

    @property
    def lead_s(self) -> int:
        """How long before the end the ranks get SIGTERM, so that they can write what they have recorded."""
        return min(_END_LEAD_S, self.walltime_s // 4)

    def check(self) -> None:
        """Refuse values that are not allowed in a directive line, before anything is written or submitted."""
        in_directives = ("name", "queue", "account", "filesystems", "constraint", "gres", "gpus_per_node")
        check_forms(
            "A directive may hold letters, digits and . : + @ = , / _ -, and no spaces.",
            *(
                (f"--{field.replace('_', '-')}", getattr(self, field), _PLAIN, "debug_1")
                for field in (*in_directives, "cpu_bind", "conda")
            ),
            *((field, getattr(self, field), _PLAIN, "ngpus=4") for field in _WITHOUT_OPTION),
        )
        check_forms(
            "A directive takes a path without spaces and quotes.",
            ("--stdout", self.stdout, _PATH, "logs/%j.out"),
            ("--stderr", self.stderr, _PATH, "logs/%j.err"),
        )
        check_forms(
            "It is created on each node, so it must be an absolute path without spaces.",
            ("--tmpdir", self.tmpdir, f"/({_PLAIN})?", "/tmp, or the site's local disk"),
        )
        check_forms(
            "The name of a shell variable consists of letters, digits and _.",
            *(("--env", name, r"[A-Za-z_]\w*", "NAME=VALUE") for name in self.env),
        )
        for directive in self.directives:
            if not directive.startswith("-") or not directive.isprintable():
                raise UsageError(
                    f"--directive {directive!r} is not a directive",
                    why="It is written as one line of the script, and starts with - or --.",
                    hint="For example: --directive=--exclusive, or --directive='-j oe' for PBS.",
                )


def check_forms(why: str, *values: tuple[str, str | None, str, str]) -> None:
    """Refuse a value that is not of its form: option, value, pattern, example."""
    for option, value, form, example in values:
        if value is not None and not re.fullmatch(form, value, re.ASCII):
            raise UsageError(
                f"{option} {value!r} cannot be used", why=why, hint=f"For example: {option} {example}"
            )


def parse_walltime(text: str) -> int:
    """Seconds of 30 (minutes, as Slurm reads a bare number), 5:00, 1:30:00, 1-00:00:00, 90s, 45m, 2h."""
    seconds = None
    if match := re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d\d)", text):
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        if rest < 60 and ((match[2] is not None and minutes < 60) or match[1] is match[2] is None):
            seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    elif match := re.fullmatch(r"(\d+)(s|m|min|h|d|)", text):
        seconds = int(match[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "": 60}[match[2]]
    if not seconds:
        raise UsageError(
            f"--walltime {text} is not a time"
            if seconds is None
            else f"--walltime {text} leaves no time to run",
            why="A walltime has hours, minutes and seconds.",
            hint="Write it like 0:30:00, 30m or 2h.",
        )
    return seconds


def parse_count(option: str, value: object) -> int:
    """A number of nodes or ranks."""
    text = str(value)
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise UsageError(
            f"{option} {text} is not a positive number",
            why="A job has at least one node and one rank on it.",
            hint=f"For example: {option} 2",
        )
    return int(text)


def parse_variables(pairs: Sequence[str]) -> dict[str, str]:
    """--env NAME=VALUE, several times."""
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(
                f"--env {pair} has no value",
                why="The job does not inherit variables from this shell.",
                hint="Write --env NAME=VALUE.",
            )
        variables[name] = value
    return variables
