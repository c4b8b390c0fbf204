"""A bash wrapper around nsys or ncu as a line of `rankscope profile`. The wrapper is read, never run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rankscope.capture.bash.guards import Guard
from rankscope.capture.bash.script import Command, Script
from rankscope.capture.bash.words import MARK, RANK_FIELDS, WITH_DEFAULT, source_of, split_words
from rankscope.errors import UsageError
from rankscope.nsight_options import take
from rankscope.ranges import as_ranges

# Words that may stand before nsys or ncu in a command that runs it.
_BEFORE = (
    "exec",
    "time",
    "nohup",
    "env",
    "sudo",
    "numactl",
    "taskset",
    "srun",
    "mpirun",
    "mpiexec",
    "jsrun",
    "aprun",
)
_LARGEST = 1 << 20
# The arguments of the script, or something made from them.
_ARGUMENTS = re.compile(r"\$[@*\d]|\$\{[@*\d].*")
_AS_NSYS = re.compile(r"%q\{(\w+)\}")
_HEADS = {"rank": "", "local_rank": "local:", "node": "node:"}


class Line(NamedTuple):
    """A command that replaces one of the wrapper's."""

    words: list[str]
    """For a shell; a variable of the environment is "$NAME" in them."""
    notes: list[str]
    """What is not taken over or has another meaning."""


def import_wrapper(path: Path) -> list[Line]:
    """One line for each command of the wrapper that runs nsys or ncu on some rank."""
    data = path.read_bytes()[:_LARGEST]
    script = Script(data.decode("utf-8", "replace"))
    lines = [line for command in script.commands for line in _lines(command)]
    if not lines:  # a command may be put together for another script
        for name, guard, value in script.variables.all_values():
            prepared = Command([word for text in value for word in split_words(text)], guard, 0)
            note = f"the command is in ${name}, which this file does not run itself"
            lines += [line._replace(notes=[note, *line.notes]) for line in _lines(prepared)]
    if not lines:
        raise UsageError(
            f"{path} runs neither `nsys profile` nor ncu",
            why=f"None of its {len(script.commands)} commands does, as far as this can be read without running it.",
            hint="Write the line yourself: rankscope profile --help-all",
        )
    lines[0].notes[:0] = script.notes
    return lines


def _lines(command: Command) -> list[Line]:
    for index, word in enumerate(command.words):
        tool = PurePosixPath(source_of(word)).name.partition(" ")[0]
        before = [PurePosixPath(source_of(other)).name for other in command.words[:index]]
        if before and before[0] not in _BEFORE:
            return []
        if tool == "nsys" and command.words[index + 1 : index + 2] == ["profile"]:
            return [_line(tool, command, index, index + 2)]
        if tool == "ncu":
            return [_line(tool, command, index, index + 1)]
    return []


def _line(tool: str, command: Command, program: int, first: int) -> Line:
    notes = [f"the condition is left out: {text}" for text in command.guard.unknown]
    before = [word for word in command.words[:program] if word not in ("exec", "nohup", "time")]
    if before[:1] == ["sudo"]:
        notes.append("sudo is left out; --run-as USER runs nsys as root and the job as USER")
        before = []
    taken = take(tool, [word for item in command.words[first:] for word in _with_defaults(item, notes)])
    notes += [f"{source_of(option)} is left out. {reason}." for option, reason in taken.refused]
    words = [
        *map(_quoted, before),
        "rankscope",
        "profile",
        "--tool",
        tool,
        "--ranks",
        _ranks(command.guard, notes),
    ]
    path = source_of(command.words[program])
    if "/" in path:
        words += [f"--{tool}", _quoted(command.words[program])]
    if folder := _folder(taken.output, notes):
        words += ["-o", _quoted(folder)]
    for word in taken.words:
        lost = [source for source in MARK.findall(word) if not re.fullmatch(r"\$\w+", source)]
        if lost or any(source[1:] in RANK_FIELDS for source in MARK.findall(word)):
            notes.append(f"{source_of(word)} is left out: its value is known only on the rank")
        else:
            words.append(_quoted(word))
    given = any(_ARGUMENTS.fullmatch(source) for word in taken.application for source in MARK.findall(word))
    if not given:
        words += map(_quoted, taken.application)
    if tool == "ncu" and not any("launch-count" in word for word in taken.words):
        notes.append(
            "ncu profiles every launch that matches; rankscope the first 32 (--launch-count 0 is all)"
        )
    return Line(words, list(dict.fromkeys(notes)))


def _with_defaults(word: str, notes: list[str]) -> list[str]:
    """A word with the defaults of variables in it; nothing, where it is options that only the environment has."""

    def default(match: re.Match[str]) -> str:
        with_default = WITH_DEFAULT.fullmatch(match[1])
        if with_default is None:
            return match[0]
        notes.append(
            f"${with_default[1]} may be set in the environment; its default is taken: {with_default[2]}"
        )
        return with_default[2]

    text = MARK.sub(default, word)
    whole = MARK.fullmatch(text)
    if whole is None or _ARGUMENTS.fullmatch(whole[1]):
        return text.split() if MARK.fullmatch(word) and text != word else [text]
    if re.fullmatch(r"\$\w*(OPT|ARG|EXTRA|PARAM|FLAG|CMD)\w*|\$\w+, which .*", whole[1]):
        notes.append(f"{whole[1]} is not known here: add its options to the line")
        return []
    return [text]


def _ranks(guard: Guard, notes: list[str]) -> str:
    """The selection of ranks; a field that no selector can combine with the others is said."""
    fields = [field for field in ("local_rank", "rank", "node") if field in guard.ranks]
    if not fields:
        return "all"
    texts = {field: as_ranges(sorted(guard.ranks[field])) for field in fields}
    first, *others = fields
    text = _HEADS[first] + texts[first]
    notes += [
        f"the condition on the {field} ({texts[field]}) is left out: --ranks joins two fields at most"
        for field in others[1:]
    ]
    return text + "".join(f"@{field}s:{texts[field]}" for field in others[:1])


def _folder(output: str | None, notes: list[str]) -> str | None:
    """The folder of the reports, up to the first part that differs from rank to rank."""
    if output is None:
        return None
    parts: list[str] = []
    for part in _AS_NSYS.sub(lambda match: f"\ue000${match[1]}\ue001", output).split("/")[:-1]:
        sources = MARK.findall(part)
        if re.search(r"%[hpni]", part) or any(source[1:] in RANK_FIELDS for source in sources):
            break
        if dynamic := [source for source in sources if not re.fullmatch(r"\$\w+", source)]:
            notes.append(
                f"the folder of the reports is left out: {dynamic[0]} in its name is known only on the rank, and may "
                "differ between ranks. rankscope makes one folder for the job; -o DIR names another"
            )
            return None
        parts.append(MARK.sub(lambda match: f"%q{{{match[1][1:]}}}", part))
    return "/".join(parts) or None


def _quoted(word: str) -> str:
    if not MARK.search(word):
        return shlex.quote(word)
    text = re.sub(r'([\\"`])', r"\\\1", word)
    return f'"{MARK.sub(lambda match: match[1], text)}"'
