"""The findings of each folder that a line of stdin names, as a line of JSON, by the rankscope that Python finds.

answers.py --beside runs it with two checkouts: it uses only what both have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect
from rankscope.timeline.run import open_run


def main() -> None:
    for line in sys.stdin:
        try:
            findings = [finding.to_dict() for finding in collect(open_run([Path(line.strip())]), Scope())]
        except Exception as error:  # noqa: BLE001 - one run that cannot be read must not end the others
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        else:
            print(json.dumps(findings, default=str), flush=True)


if __name__ == "__main__":
    main()
