"""rankscope fetch host:path: what the views need of a run on another machine, not its raw gigabytes."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from pathlib import Path, PurePosixPath

from rankscope.cli.common import check_target
from rankscope.cli.remote_options import add_remote_options, as_argument, remote_program
from rankscope.errors import RemoteError, StoreError
from rankscope.remote import Place, Ssh, check_remote, parse_place, rsync

EXAMPLES = """\
examples:
  rankscope fetch cluster:runs/a                   to ./a; then: rankscope stats a, view a, report a
  rankscope fetch me@cluster:/scratch/runs/a -o a  again later copies only what has changed
  rankscope fetch cluster:runs/a --remote-rankscope .venv/bin/rankscope
  rankscope view ssh://cluster/~/runs/a            copies nothing: looks at it over there
"""
_MANIFESTS = ("--include=/rankscope.json", "--include=/rank-*.rankscope.json", "--exclude=*")
_ENDING = re.compile(r"(\.pt\.trace)?(\.json(\.gz)?|\.nsys-rep|\.ncu-rep|\.sqlite)$")
_NOT_FOUND = 127


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Bring a run over from another machine: it is read there (once), and the store is copied here by rsync.\n"
        "Everything but the raw files works on it; they stay where they are."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("place", metavar="HOST:PATH", help="a run folder or trace file over there")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="to here (default: its own name)")
    parser.add_argument(
        "-f", "--force", action="store_true", help="also into a folder that holds another run"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="only say what went wrong")
    add_remote_options(parser, "the other machine")


def main(args: argparse.Namespace) -> int:
    from rankscope import units
    from rankscope.store.layout import STORE_NAME, Index

    place = parse_place(args.place)
    target = args.output or Path(_short_name(place))
    store = target / STORE_NAME
    program = remote_program(args)
    if not _is_earlier_copy(store, place):
        check_target(target, args.force)
    ssh = Ssh(place, args.ssh)
    source = _remote_store(ssh, program, args.quiet)
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot write {target}", why=f"{error.strerror}.", hint="Name another: -o DIR"
        ) from error
    _copy(ssh, [f"{source}/"], store, ["--delete", "--exclude=incoming-*"])
    # Small, and they say how the run was made; a single trace has none, which is no error.
    rsync(ssh, [f"{place.path}/"], target, _MANIFESTS, silent=True)
    _note_origin(store, place)
    entries = Index.load(store).segments
    if not entries:
        raise RemoteError(
            f"what came from {place} cannot be used here",
            why="Its store is empty, or of another version of rankscope.",
            hint="Use the same version on both machines.",
        )
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    raw = sum(entry.manifest["source"]["bytes"] for entry in entries)
    if not args.quiet:
        print(
            f"Copied {len(entries)} file{'s' * (len(entries) != 1)} of {place} to {target}: "
            f"{units.format_bytes(size)} for {units.format_bytes(raw)} of raw traces"
        )
        print(f"Next: rankscope stats {target}")
    return 0


def _short_name(place: Place) -> str:
    name = _ENDING.sub("", PurePosixPath(place.path).name)
    return name if name not in ("", "..") else place.host.rpartition("@")[2]


def _remote_store(ssh: Ssh, program: list[str], quiet: bool) -> str:
    """Where the store is over there; the run is read first, if it has not been."""
    place = ssh.place
    options = ["--print-store", *(["-q"] if quiet else [])]
    done = ssh.run([*program, "ingest", as_argument(place.path), *options])
    lines = done.stdout.strip().splitlines()
    if lines and lines[-1].startswith("/"):  # some files may be damaged: it said so, and the rest is there
        return lines[-1]
    if done.returncode == _NOT_FOUND:
        # Read by somebody before: what is there is good, if perhaps not the newest.
        store = f"{place.path.rstrip('/')}/.rankscope"
        if ssh.run(["test", "-f", f"{store}/store.json"]).returncode == 0:
            print(f"rankscope is not on {place.host}: copying the store as it is there", file=sys.stderr)
            return store
    check_remote(done.returncode or 1, place, program)
    raise AssertionError("unreachable")


def _copy(ssh: Ssh, sources: list[str], target: Path, options: list[str]) -> None:
    code = rsync(ssh, sources, target, options)
    if code == _NOT_FOUND or code == 12:
        raise RemoteError(
            f"rsync could not copy from {ssh.place.host}",
            why="It is not installed over there, or the connection broke; it says more above.",
            hint=f"Try: ssh {ssh.place.host} rsync --version. Run this again: it goes on where it was.",
        )
    if code:
        raise RemoteError(
            f"rsync from {ssh.place.host} ended with {code}",
            why="It says why in the lines above.",
            hint="Run this again: it goes on where it was.",
        )


def _is_earlier_copy(store: Path, place: Place) -> bool:
    """Was this folder fetched from there before?"""
    from rankscope.store.layout import Index

    with contextlib.suppress(StoreError):
        entries = Index.load(store).segments
        return bool(entries) and all(str(entry.source).startswith(f"{place.host}:") for entry in entries)
    return False


def _note_origin(store: Path, place: Place) -> None:
    """Say in the index on which machine the raw files are: a file here of the same path is another one."""
    from rankscope.atomic_files import write_json
    from rankscope.store.layout import INDEX_FILE

    path = store / INDEX_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for segment in content["segments"]:
            source = segment["manifest"]["source"]
            source["path"] = f"{place.host}:{source['path']}"
    except (OSError, ValueError, KeyError, TypeError):
        return  # said by whoever opens it
    write_json(path, content)
