"""Fuzz the doors of rankscope with coverage guidance (atheris, which needs x86_64).

    python tests/fuzz/run.py TARGET --minutes 5 [--corpus FOLDER] [--seed N]
    python tests/fuzz/run.py --list
    tests/sanitize.sh fuzz scan --minutes 5      # guided by the coverage of the C parts, too

What breaks is left as crash-… in the current folder: put it into tests/fuzz/corpus/TARGET, where test_corpus.py tries
it at every test run, and mend the code.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import atheris

with atheris.instrument_imports(include=["rankscope"]):
    from fuzz.targets import TARGETS, attempt

_CORPUS = Path(__file__).with_name("corpus")
_INPUT_LIMIT_S = 60
_MEMORY_LIMIT_MB = 4096


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", nargs="?", choices=TARGETS, metavar="TARGET")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--corpus", type=Path, help="where new inputs are kept (default: a temporary folder)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.list or options.target is None:
        print("\n".join(TARGETS))
        return
    target = TARGETS[options.target]
    found = options.corpus or Path(tempfile.mkdtemp(prefix="fuzz-corpus-"))
    found.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (found / f"seed-{number}").write_bytes(seed)
    folders = [str(found)]
    if (_CORPUS / options.target).is_dir():
        folders.append(str(_CORPUS / options.target))
    words = [
        sys.argv[0],
        f"-max_total_time={int(60 * options.minutes)}",
        f"-timeout={_INPUT_LIMIT_S}",
        f"-rss_limit_mb={_MEMORY_LIMIT_MB}",
        f"-seed={options.seed}",
        "-print_final_stats=1",
        "-max_len=65536",
    ]
    atheris.Setup([*words, *folders], lambda data: attempt(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
