"""rankscope help: of a command, a kind of finding, or a term."""

from __future__ import annotations

import argparse

from rankscope.cli import COMMANDS, OLD_NAMES, terminal_width, top_level_help
from rankscope.cli import main as rankscope
from rankscope.cli.help_text import wrapped
from rankscope.cli.options import add_options
from rankscope.errors import UsageError
from rankscope.text.spelling import did_you_mean

DESCRIPTION = "Explain a command, a kind of finding, or a term. Without a name: list them."
EPILOG = """\
examples:
  rankscope help               the commands, the kinds of findings, the terms
  rankscope help stats         as rankscope stats --help
  rankscope help data-loading  what this finding means, and what to do
  rankscope help MFU           what the word means
"""
TERMS = {
    "exposed transfer": "The time in which ranks exchange data and the GPU computes nothing. All ranks have arrived; "
    "only the network is at work. Transfer behind compute costs no time, and is not counted.",
    "MFU": "Model FLOPs utilisation: how much of the GPU's peak rate the model uses. It is the FLOPs of a step, "
    "divided by the step time and by the peak. Work that is done twice is counted once.",
    "evidence id": "The name of some rows of a report, such as kernels:name+rank:9c0f2a17. Answers in JSON give one "
    "for each figure of a finding. To see the rows: rankscope stats RUN -r ID",
    "%q{VAR}": "In a name of a file or folder: the value of the environment variable VAR, as in nsys. "
    "With -o runs/%q{SLURM_JOB_ID}, each job of Slurm has a folder of its own.",
    "local:0@nodes:0-1": "Which ranks to record. 0,8-15 are numbers of ranks. local:0 is the first rank of each node. "
    "node:0-1 is every rank of the first two nodes. local:0@nodes:0-1 is the first rank of each of these nodes. "
    "local:0@ranks:0-7 is each rank of 0 to 7 that is the first of its node.",
    "finding": "A fact about the run that costs time or leaves doubt, with its evidence and what to do about it. "
    "Its severity is info, warning or critical.",
    "rank": "One process of a distributed job; as a rule it uses one GPU. A node is a machine, with several ranks.",
    "rollup": "The sums per step that are kept beside a trace when it is first read. Most answers are made from them.",
    "store": "What rankscope keeps of a trace once it has read it: the folder .rankscope beside the trace. "
    "It is safe to delete; the next command reads the trace again.",
    "settings": "Options that a file sets, so that you need not type them. pyproject.toml, here or in a folder above, "
    'has a table for each command: [tool.rankscope.stats] with format = "markdown". In ~/.config/rankscope.toml it is '
    "[stats]. An option that you type is used instead. rankscope COMMAND --help shows what applies.",
    "straggler": "The rank that arrives last, so that the others wait for it.",
}
"""Words that --help and the answers use. Some are names of findings too."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "[NAME ...]  a command, a kind of finding, or a term")


def main(args: argparse.Namespace) -> int:
    from rankscope.views.help_pages import page_names, page_text

    width, name = terminal_width(), " ".join(args.name)
    if not name:
        print(top_level_help())
        for title, names in ("kinds of findings", page_names()), ("terms", [*TERMS]):
            print("\n".join([f"{title} (rankscope help NAME)", *wrapped(", ".join(names), width, "  "), ""]))
        return 0
    if args.name[0] in (*COMMANDS, *OLD_NAMES):
        return rankscope([*args.name, "--help"])
    term = next((term for term in TERMS if term.lower().startswith(name.lower())), "")
    text = page_text(name.lower(), width) or "\n".join([*wrapped(TERMS.get(term, ""), width), ""])
    if not text:
        raise UsageError(
            f"there is no help on '{name}'",
            why="It is neither a command nor a kind of finding, nor a term.",
            hint=f"{did_you_mean(name, (*COMMANDS, *page_names(), *TERMS))}All of them: rankscope help",
        )
    print(text, end="")
    return 0
