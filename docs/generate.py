"""Writes commands.md, store.md and the graph in architecture.md from the code, and runs notebook.ipynb.

`make docs` runs it; a test compares what it would write with what is there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from import_graph import architecture_page

from rankscope import cli
from rankscope.store.run import VIEWS, describe

HERE = Path(__file__).parent
HELP_WIDTH = "100"


def commands_page() -> str:
    os.environ["COLUMNS"] = HELP_WIDTH
    parts = [
        "# Every command and option",
        "",
        "What `--help` says, command by command (made by `make docs`).",
        "",
    ]
    parts += ["```", cli.top_level_help().rstrip(), "```", ""]
    for name in cli.COMMANDS:
        for title, text in cli.help_texts(name):
            parts += [f"## {title}", "", "```", text.rstrip(), "```", ""]
    return "\n".join(parts)


def store_page() -> str:
    parts = [
        "# The tables of a run",
        "",
        "What `rankscope query` sees and `rankscope export` writes (made by `make docs`). Times are whole",
        "nanoseconds from the run's start, which is the earliest event of any rank by its own clock. Ids count the",
        "events of a file, so a slice is named by (rank, segment, id). A column that does not apply is null.",
        "",
    ]
    for view in VIEWS:
        parts += [f"## {view.name}", "", view.help, "", "| column | type | meaning |", "|---|---|---|"]
        parts += [f"| {field.name} | {field.type} | {field.help} |" for field in describe(view)]
        parts.append("")
    return "\n".join(parts)


def notebook_page() -> str:
    os.environ["COLUMNS"] = HELP_WIDTH
    from run_notebook import executed

    return executed(HERE / "notebook.ipynb")


PAGES = {
    "commands.md": commands_page,
    "store.md": store_page,
    "architecture.md": architecture_page,
    "notebook.ipynb": notebook_page,
}


if __name__ == "__main__":
    for file, page in PAGES.items():
        (HERE / file).write_text(page(), encoding="utf-8")
        print(f"Wrote docs/{file}")
