"""rankscope fetch: copy a run from another machine: what the views need, or its raw files."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankscope.cli.common import add_remote_options, check_target, say
from rankscope.cli.options import add_options
from rankscope.remote.ssh import Ssh, parse_remote_path, program_words
from rankscope.text.run_words import shell_word

DESCRIPTION = (
    "Copy a run from another machine: it is read there (once), and the store is copied here by rsync.\n"
    "All commands work on the copy; the raw files stay where they are, unless --raw asks for them instead.\n"
    "One ssh connection is used for everything: a password or a one-time code is asked for once."
)
EPILOG = """\
examples:
  rankscope fetch cluster:runs/a                   to ./a; then: rankscope stats a, view a, report a
  rankscope fetch me@cluster:/scratch/runs/a -o a  again later copies only what has changed
  rankscope fetch cluster:runs/a --remote-rankscope .venv/bin/rankscope
  rankscope fetch cluster:runs/a --raw             the traces and reports themselves, for other tools
  rankscope view ssh://cluster/~/runs/a            copies nothing: the viewer runs over there
"""
_OPTIONS = """\
-o, --output DIR  where to (default: its own name, here)
-f, --force  copy even into a folder that holds another run
--raw  copy the raw files (traces, .nsys-rep, .ncu-rep, snapshots) instead; rankscope is not needed over there
-q, --quiet  print only errors
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("remote_path", metavar="HOST:PATH", help="a run folder or trace file over there")
    add_options(parser, _OPTIONS, output=Path)
    add_remote_options(parser, "the other machine")


def main(args: argparse.Namespace) -> int:
    from rankscope import units
    from rankscope.remote.fetch import default_target, fetch, fetch_raw, is_earlier_copy

    remote_path = parse_remote_path(args.remote_path)
    target = args.output or default_target(remote_path)
    program = program_words(args.remote_rankscope)
    if not is_earlier_copy(target, remote_path):
        check_target(target, args.force)
    with Ssh.connected(remote_path, args.ssh) as ssh:
        done = (
            fetch_raw(ssh, program, target)
            if args.raw
            else fetch(ssh, program, target, quiet=args.quiet, log=say)
        )
    if not args.quiet:
        size = units.format_bytes(done.copied_bytes)
        if not args.raw:
            size += f" for {units.format_bytes(done.raw_bytes)} of raw traces"
        print(f"Copied {done.files} file{'s' * (done.files != 1)} of {remote_path} to {target}: {size}")
        print(f"Next: rankscope stats {shell_word(target)}")
    return 0
