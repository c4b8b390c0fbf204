"""rankscope completion: what the Tab key of a shell completes. Its scripts ask this command, which asks the parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from rankscope.cli import COMMANDS, command_parser
from rankscope.cli.common import run_folders
from rankscope.cli.options import add_options, takes_the_rest

DESCRIPTION = "Print a script that lets the Tab key complete commands, options, reports and run folders."
EPILOG = """\
examples:
  eval "$(rankscope completion bash)"          in ~/.bashrc
  eval "$(rankscope completion zsh)"           in ~/.zshrc, after compinit
  rankscope completion fish | source           in ~/.config/fish/config.fish
"""
SCRIPTS = {
    "bash": """\
_rankscope() {
  local candidate
  COMPREPLY=()
  while IFS= read -r candidate; do
    COMPREPLY+=("$(printf %q "$candidate")")
  done < <(rankscope completion bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _rankscope rankscope
""",
    "zsh": """\
_rankscope() {
  local candidates
  candidates=("${(@f)$(rankscope completion zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n $candidates ]]; then compadd -- $candidates; else _files; fi
}
compdef _rankscope rankscope
""",
    "fish": """\
function _rankscope
  set -l word (commandline -ct)
  set -l candidates (rankscope completion fish (commandline -opc)[2..] "$word" 2>/dev/null)
  if set -q candidates[1]
    printf '%s\\n' $candidates
  else
    __fish_complete_path "$word"
  end
end
complete -c rankscope -f -a '(_rankscope)'
""",
}
"""Each asks for the candidates of the words so far; where there are none, the shell completes files."""
_PACKAGE = Path(__file__).parent.parent
_REPORTS = {
    "stats": ("analysis/questions.py", r'_report\(\s*"([\w.]+)"'),
    "diff": ("analysis/diff/samples.py", r'(?m)^    "(\w+)": (?:_|partial)'),
}
"""By the command that takes names of reports: where they stand. Importing these modules imports numpy."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rankscope completion {bash,zsh,fish}"
    add_options(parser, "SHELL  bash, zsh or fish", shell={"choices": [*SCRIPTS]})
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> int:
    lines = sorted(candidates(args.words)) if args.words else SCRIPTS[args.shell].splitlines()
    for line in lines:
        print(line)
    return 0


def candidates(words: list[str]) -> set[str]:
    """What may stand in place of the last of the words behind `rankscope`."""
    *before, word = [*words, ""] if words[-1] == "=" else words
    if not before:
        return {name for name in (*COMMANDS, "--help", "--version", *_runs(word)) if name.startswith(word)}
    if before[0] not in COMMANDS:
        return set()
    parser: argparse.ArgumentParser = command_parser(before[0])[0]
    for added in getattr(parser, "subcommands", ()):
        parser = added if added.prog.split()[-1] in before[1:] else parser
    option, equals, value = word.partition("=")
    prefix = option + equals
    if not (option.startswith("--") and equals):
        is_split = before[-1] == "="  # bash has it as a word of its own
        prefix, option, equals, value = "", before[-1 - is_split], "=" * is_split, word
    actions = parser._option_string_actions
    with_value = {name for name, each in actions.items() if each.nargs is None}
    if option in with_value or (equals and option in actions):
        listed, comma, begun = value.rpartition(",")
        names = {name for name in _values(actions[option], before[0]) if name.startswith(begun)}
        return {f"{prefix}{listed}{comma}{name}" for name in names}
    arguments = [each for last, each in pairwise(before) if each[:1] != "-" and last not in with_value]
    if arguments and takes_the_rest(parser):
        return set()  # the words of another command
    if word.startswith("-"):
        names = {name for name, each in actions.items() if each.help != argparse.SUPPRESS}
    else:
        names = set(_arguments(parser, before[0], word))
    return {name for name in names if name.startswith(word)}


def _values(action: argparse.Action, command: str) -> Iterable[str]:
    """Of an option."""
    if action.dest == "report" and command in _REPORTS:
        file, pattern = _REPORTS[command]
        more = ("all", "list", "summary", "findings") if command == "stats" else ("all", "stacks")
        return [*re.findall(pattern, (_PACKAGE / file).read_text(encoding="utf-8")), *more]
    return action.choices or ()


def _arguments(parser: argparse.ArgumentParser, command: str, word: str) -> Iterator[str]:
    """What is no option: runs, subcommands, what there is help on."""
    if command == "help":
        from rankscope.cli.help import TERMS
        from rankscope.views.help_pages import page_names

        yield from (*COMMANDS, *page_names(), *TERMS)
    for action in parser._positionals._group_actions:
        yield from action.choices or ()
        if action.dest in ("run", "other", "base", "new"):
            yield from _runs(word)


def _runs(word: str) -> Iterator[str]:
    """Run folders whose path begins so."""
    folder, slash, _ = word.rpartition("/")
    for run in run_folders(Path(folder + slash)):
        yield str(run)
