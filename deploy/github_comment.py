"""Write rankscope's comment on a pull request, or replace the one that is there: github_comment.py FILE.

A step of action.yml. The standard library only: it runs with whatever Python the runner has.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

MOST_CHARACTERS = 65_000  # GitHub takes 65,536


def call(method: str, path: str, content: object = None) -> Any:
    """GitHub's answer as JSON."""
    address = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues/{path}"
    headers = {"Accept": "application/vnd.github+json", "Authorization": f"Bearer {os.environ['TOKEN']}"}
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(address, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def earlier_comment(number: str, mark: str) -> Any:
    """The id of our comment, or None."""
    page, full = 1, True
    while full:
        comments = call("GET", f"{number}/comments?per_page=100&page={page}")
        page, full = page + 1, len(comments) == 100
        for comment in comments:
            if comment["body"].startswith(mark):
                return comment["id"]
    return None


def main() -> None:
    mark = f"<!-- {os.environ['TITLE']} -->"
    table = Path(sys.argv[1]).read_text(encoding="utf-8")
    text = table.replace("@", "@\u200b")  # a name in a trace mentions nobody
    body = f"{mark}\n### {os.environ['TITLE']}: {os.environ['VERDICT']}\n\n{text}"
    if len(body) > MOST_CHARACTERS:
        body = body[:MOST_CHARACTERS] + "\n\n… (the rest is in the job's summary)"
    number = os.environ["NUMBER"]
    earlier = earlier_comment(number, mark)
    if earlier is None:
        call("POST", f"{number}/comments", {"body": body})
    else:
        call("PATCH", f"comments/{earlier}", {"body": body})


if __name__ == "__main__":
    main()
