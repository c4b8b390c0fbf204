"""In front of a launcher: insert `rankscope profile` before the program in the launcher's own command line.

Each rank then decides for itself. The options are in the command line because every launcher passes that to all
nodes, which is not true of the environment. A launcher or an option that is not known here is not an error: the plan
is then passed in the environment (see inapp's bootstrap). Where the program begins is never guessed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.capture.job_name import is_python
from rankscope.capture.launcher_options import ACCELERATE, DEEPSPEED, MPI, TORCHRUN, Grammar, Takes

Words = list[str]

# A placeholder for the argument that deepspeed adds before the script's own (--local_rank=N).
LOCAL_RANK_PLACE = "{local_rank}"
DEEPSPEED_ENTRY = "rankscope.capture.deepspeed"
_LAUNCHER_MODULES = ("torch.distributed.", "accelerate.commands", "deepspeed.launcher")


class CommandLine(NamedTuple):
    """A launcher's options and the index of its program; no index where the program cannot be told."""

    options: list[tuple[tuple[str, ...], Words]]
    """Of each its names (several in a bundle of short ones) and its words."""
    program: int | None

    def has(self, *names: str) -> bool:
        return any(set(names) & set(given) for given, _ in self.options)

    def without(self, *names: str) -> Words | None:
        """The options' words without these flags; None where one is bundled with others."""
        if any(len(given) > 1 for given, _ in self.options if set(given) & set(names)):
            return None
        return [word for given, words in self.options if not set(given) & set(names) for word in words]


def rewrite(command: Sequence[str], inserted: Sequence[str], env: Mapping[str, str]) -> Words | None:
    """The launcher's command with ``inserted`` before each program.

    None when it is not a known launcher, or when it has an option that is in no table: then nothing is guessed.
    """
    words = list(command)
    name = Path(words[0]).name
    module = words[2] if is_python(name) and len(words) > 2 and words[1] == "-m" else ""
    size = 3 if module else 2 if name == "accelerate" else 1
    head, rest = words[:size], words[size:]
    if name == "torchrun" or module == "torch.distributed.run":
        if {"PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH"} & set(
            env
        ):  # it takes each option from the environment too
            return None
        # -u because torchrun gives it to the scripts it starts itself
        python = env.get("PYTHON_EXEC")
        return _python_launcher(head, rest, inserted, TORCHRUN, "--no-python", python, ["-u"])
    if name in MPI:
        return _programs(head, rest, inserted, MPI[name])
    if name == "deepspeed":
        return _deepspeed(head, rest, inserted)
    in_two_words = name == "accelerate" and words[1:2] == ["launch"]
    if in_two_words or name == "accelerate-launch" or module == "accelerate.commands.launch":
        return _python_launcher(head, rest, inserted, ACCELERATE, "--no_python")
    return None


def is_launcher(words: Sequence[str]) -> bool:
    """Whether a running process is a launcher's own Python (the torchrun agent) and not a rank."""
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m":
            return rest[:1] != [] and rest[0].startswith(_LAUNCHER_MODULES)
        if word in ("-W", "-X"):
            rest = rest[1:]
        elif not word.startswith("-"):
            return Path(word).name in ("torchrun", "deepspeed", "accelerate", "accelerate-launch")
    return False


def _python_launcher(
    head: Words,
    rest: Words,
    inserted: Sequence[str],
    grammar: Grammar,
    no_python: str,
    python: str | None = None,
    flags: Sequence[str] = (),
) -> Words | None:
    """Of a launcher that starts scripts with Python unless ``no_python`` is given: with the one that runs it, which is
    named in `python -m LAUNCHER`, or is that of its script."""
    line = read_options(rest, grammar)
    if line is None or line.program is None or (options := line.without("m", "module")) is None:
        return None
    program = rest[line.program :]
    if line.has("no-python"):
        return [*head, *options, *inserted, *program]
    python = python or (head[0] if len(head) > 2 else interpreter_of(head[0]))
    if python is None:
        return None
    as_module = ["-m"] if line.has("m", "module") else []
    return [*head, *options, no_python, *inserted, python, *flags, *as_module, *program]


def _programs(head: Words, rest: Words, inserted: Sequence[str], grammars: Sequence[Grammar]) -> Words | None:
    """The command with ``inserted`` before each program. All tables that have the options must agree on the place."""
    places = {starts for grammar in grammars if (starts := program_indices(rest, grammar)) is not None}
    if len(places) != 1:
        return None
    starts = places.pop()
    before = [rest[begin:end] for begin, end in zip((0, *starts), starts, strict=False)]
    if not before:
        return None
    return [*head, *(word for part in before for word in (*part, *inserted)), *rest[starts[-1] :]]


def _deepspeed(head: Words, rest: Words, inserted: Sequence[str]) -> Words | None:
    """deepspeed adds --local_rank=N right after what it starts; rankscope.capture.deepspeed moves it to the script."""
    line = read_options(rest, DEEPSPEED)
    if line is None or line.program is None or (options := line.without("no_python", "module")) is None:
        return None
    start: Words = []
    if not line.has("no_python"):
        python = interpreter_of(head[0])
        if python is None:
            return None
        start = [python, "-u", *(["-m"] if line.has("module") else [])]
    ours = list(inserted[inserted.index("profile") :])  # deepspeed starts the module itself
    script, *arguments = rest[line.program :]
    entry = ["--module", DEEPSPEED_ENTRY, *ours, *start]
    return [*head, *options, *entry, script, LOCAL_RANK_PLACE, *arguments]


def program_indices(words: Sequence[str], grammar: Grammar) -> tuple[int, ...] | None:
    """Where each program of a command line begins: none where that cannot be told, None for an unknown option."""
    starts: list[int] = []
    begin = 0
    while True:
        line = read_options(words[begin:], grammar)
        if line is None:
            return None
        if line.program is None:
            return ()
        starts.append(begin + line.program)
        if not grammar.colon or ":" not in words[starts[-1] :]:
            return tuple(starts)
        begin = words.index(":", starts[-1]) + 1


def read_options(words: Sequence[str], grammar: Grammar) -> CommandLine | None:
    """A launcher's words up to its program; None where an option is not in the table."""
    options: list[tuple[tuple[str, ...], Words]] = []
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] not in ("-", "--"):
        word = words[index]
        short = grammar.bundles and not word.startswith("--")
        names, takes, value = _bundle(word[1:], grammar) if short else _long_option(word, grammar)
        if takes is None:
            return None
        if takes is Takes.ENVIRONMENT:
            return CommandLine(options, None)
        end = (
            index
            + 1
            + int(takes in (Takes.VALUE, Takes.VARIABLE) and value is None)
            + 2 * (takes is Takes.PAIR)
        )
        if takes is Takes.VARIABLE and "=" not in (value or "".join(words[index + 1 : index + 2])):
            end += 1
        options.append((names, list(words[index:end])))
        index = end
    if words[index : index + 1] == ["--"]:
        index += 1
    if grammar.assignments:
        # With its hosts in the command line, mpirun_rsh counts words: an inserted one would be taken for a host.
        if not CommandLine(options, None).has("hostfile", "machinefile", "f", "ppn"):
            return CommandLine(options, None)
        while index < len(words) and "=" in words[index]:
            index += 1
    return CommandLine(options, index if index < len(words) else None)


def _long_option(word: str, grammar: Grammar) -> tuple[tuple[str, ...], Takes | None, str | None]:
    """The name of an option, what it takes (None: unknown) and the value behind its equals sign."""
    name, equals, value = word.lstrip("-").partition("=")
    name = name.replace("_", "-") if grammar.underscores else name
    matches = [name] if name in grammar.options and (len(name) > 1 or not grammar.bundles) else []
    if not matches and grammar.abbreviations and name:
        matches = [full for full in grammar.options if len(full) > 1 and full.startswith(name)]
    takes = {grammar.options[full] for full in matches}
    return tuple(matches), takes.pop() if len(takes) == 1 else None, value if equals else None


def _bundle(letters: str, grammar: Grammar) -> tuple[tuple[str, ...], Takes | None, str | None]:
    """The same for short options in one word: those without a value, then at most one with a value."""
    for index, letter in enumerate(letters):
        takes = grammar.options.get(letter)
        if takes is not Takes.NOTHING:
            value = letters[index + 1 :] or None
            return tuple(letters[: index + 1]), Takes.NOTHING if takes is Takes.ATTACHED else takes, value
    return tuple(letters), Takes.NOTHING, None


def interpreter_of(script: str) -> str | None:
    """The Python that a console script such as torchrun runs in, from its first lines."""
    path = shutil.which(script)
    if path is None:
        return None
    try:
        head = Path(path).read_bytes()[:1024].decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    words = head[0][2:].split() if head and head[0].startswith("#!") else []
    if words and Path(words[0]).name == "env":
        return shutil.which(words[-1])
    if words and is_python(Path(words[0]).name):
        return words[0]
    # pip writes '''exec' /a/long/path/python "$0" "$@" where the path is too long for a #! line
    match = re.match(r"'''exec' (\S+)", head[1]) if len(head) > 1 else None
    return match[1].strip('"') if match else None


def own_command() -> list[str]:
    """This rankscope, for other processes of the job: without the job's PYTHON variables (-E), which may hold a
    sitecustomize or another typing.py. Not where we are imported from there, nor where PYTHONHOME is needed.
    """
    package = Path(__file__).resolve().parents[1]
    folders = [Path(part).resolve() for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    needs_variables = package.parent in folders or "PYTHONHOME" in os.environ
    return [sys.executable, *([] if needs_variables else ["-E"]), str(package / "__main__.py")]


def bootstrap_environment(env: Mapping[str, str], plan_json: str, plan_variable: str) -> dict[str, str]:
    """The environment in which every Python process checks whether it is a selected rank.

    `start_capture.clean_environment` takes it back, exactly, in each process that needs it no more.
    """
    bootstrap = str(Path(__file__).resolve().parent.parent / "inapp" / "bootstrap")
    # An empty one becomes a second bootstrap: Python would take an empty part for the current folder.
    path = env.get("PYTHONPATH")
    path = bootstrap if path == "" else path
    return {
        **env,
        plan_variable: plan_json,
        "PYTHONPATH": f"{bootstrap}{os.pathsep}{path}" if path else bootstrap,
    }


def command_text(command: Sequence[str], env: Mapping[str, str]) -> str:
    """A command line for a shell, with the variables that differ from ours in front."""
    changed = [f"{name}={shlex.quote(value)}" for name, value in env.items() if os.environ.get(name) != value]
    return " ".join([*changed, shlex.join(command)])
