"""Manifests against the definitions of Kubernetes 1.31, in which a field that is not defined is an error."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from conftest import DATA


@cache
def _validator(kind: str) -> Any:
    definitions = json.loads((DATA / "kubernetes-1.31.json").read_text())
    schema = {**definitions["kinds"][kind], "$defs": definitions["$defs"]}
    return jsonschema.Draft202012Validator(schema)


def validate_manifest(document: dict[str, Any]) -> None:
    """A Pod, a Job or a Service; the schema also compares apiVersion."""
    _validator(document["kind"]).validate(document)
