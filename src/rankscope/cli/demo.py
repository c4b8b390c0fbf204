"""rankscope demo: a recorded run that the package contains, opened on the rank that is slow."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from rankscope.cli import common
from rankscope.cli import main as rankscope
from rankscope.cli.options import add_options
from rankscope.cli.view import SERVER, port_of
from rankscope.files import copy_file, make_private_folder
from rankscope.text.run_words import shell_word
from rankscope.version import __version__

DESCRIPTION = (
    "A recorded run in which one rank is slow, beside the same job after the fix, in the browser. "
    "It needs no GPU and no torch, and starts no job."
)
EPILOG = """\
examples:
  rankscope demo              the timeline in the browser; Ctrl-C ends it
  rankscope demo --no-open    on a machine you reach by ssh; prints the address
  rankscope demo --no-view    in the terminal: the summary, and what the fix changed
"""
_RECORDED = Path(__file__).parent.parent / "demo"
_ABOUT = """\
A recorded training run: 4 ranks on CPUs, and one of them is slow. A second run
is the same job after the fix. Both come with rankscope; no job is started.
"""
_OWN_JOB = "  rankscope profile torchrun --nproc-per-node 4 train.py   your own job"
_IN_BROWSER = f"""\
{_ABOUT}
On the page:
  Every rank has two rows: A is the slow job, B is the job after the fix.
  In A, three ranks wait (light) until rank 2 has loaded its data (empty).
  The headline says what the fix saved. The key n shows the next change.

In another terminal:
  {{stats}}
  {{diff}}
{_OWN_JOB}
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, SERVER, host="127.0.0.1", port={"type": port_of, "default": 0})
    add_options(parser, "--no-view  print the summary and what the fix changed, without a browser")


def main(args: argparse.Namespace) -> int:
    folder = _copied_runs()
    run, fixed = str(folder / "run"), str(folder / "fixed")
    diff = f"rankscope diff {shell_word(run)} \\\n    {shell_word(fixed)}"
    if not args.no_view:
        common.say(_IN_BROWSER.format(stats=f"rankscope stats {shell_word(run)}", diff=diff))
        flags = ["--no-open"] if args.no_open else []
        return rankscope(["view", run, fixed, "-q", "--host", args.host, "--port", str(args.port), *flags])
    print(f"{_ABOUT}\n$ rankscope stats {shell_word(run)}")
    code = rankscope(["stats", run, "-q"])
    print(f"\n$ {diff} -r steps")
    code = code or rankscope(["diff", run, fixed, "-q", "-r", "steps"])
    print(f"\nNext:\n  rankscope demo   the same in the browser\n{_OWN_JOB}")
    return code


def _copied_runs() -> Path:
    """The folder of both runs, in which a store can be written; the package may be read-only. What is there stays."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(cache, f"rankscope/demo-{__version__}").expanduser()
    try:
        _copy_runs(folder)
    except (OSError, RuntimeError):  # there is no home, or it is full
        _copy_runs(folder := Path(tempfile.mkdtemp(prefix="rankscope-demo-")))
    return folder


def _copy_runs(folder: Path) -> None:
    for source in _RECORDED.glob("*/rank*"):
        target = folder / source.relative_to(_RECORDED)
        make_private_folder(target.parent)
        if not target.exists():
            copy_file(source, target)
