"""Recording fakes of programs that are not here (docker, podman, apptainer, kubectl). They are fakes: they note how
they were called and answer from a file; nothing is built, started or sent anywhere.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

_FAKE = """\
#!{python}
import json, sys
from pathlib import Path
here = Path(__file__).parent
stdin = sys.stdin.read() if sys.argv[-2:] == ["-f", "-"] else ""
with (here / "calls.jsonl").open("a") as log:
    log.write(json.dumps([Path(__file__).name, *sys.argv[1:], *([stdin] if stdin else [])]) + "\\n")
words = [word for word in sys.argv[1:]]
for start, (code, out, err) in json.loads((here / "answers.json").read_text()):
    if all(word in words for word in start):
        sys.stdout.write(out)
        sys.stderr.write(err)
        if words[0] == "cp" and code == 0:
            (Path(words[-1]) / (words[-2].split(":")[0] + ".json")).write_text("{{}}")
        sys.exit(code)
"""


class Fake:
    """A folder for PATH with fakes in it."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        folder.mkdir()
        self.answer()
        for name in names:
            program = folder / name
            program.write_text(_FAKE.format(python=sys.executable))
            program.chmod(0o755)

    def answer(self, *answers: tuple[list[str], tuple[int, str, str]]) -> None:
        """The first whose words are all in the call: (exit code, stdout, stderr); else 0 and silence."""
        (self.folder / "answers.json").write_text(json.dumps(answers))

    @property
    def calls(self) -> list[list[str]]:
        log = self.folder / "calls.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
