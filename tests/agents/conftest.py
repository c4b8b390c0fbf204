"""Runs that assistants ask about: one with a slow rank, the same with hostile names, and the tools over them."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import DATA
from hostile_names import CONTROL, HOSTILE
from rankscope.agents.tools import Tools

_RENAMED = {
    "slow_extra": HOSTILE + CONTROL,
    "aten::mm": f"aten::{HOSTILE}\n\r{CONTROL}",
    "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT": f"void {HOSTILE} {'x' * 5000}{CONTROL}",
}


@pytest.fixture(scope="session")
def slow2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks over gloo, rank 2 slow."""
    folder = tmp_path_factory.mktemp("agents") / "slow2"
    shutil.copytree(DATA / "seqpar-gloo4-slow2", folder)
    return folder


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run; an annotation, an op and a kernel have names that try to give orders."""
    folder = tmp_path_factory.mktemp("agents") / "hostile"
    folder.mkdir()
    for file in (DATA / "seqpar-gloo4-slow2").glob("*.gz"):
        text = gzip.decompress(file.read_bytes()).decode()
        for name, renamed in _RENAMED.items():
            text = text.replace(json.dumps(name), json.dumps(renamed))
        (folder / file.name.removesuffix(".gz")).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tools(slow2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    opened = Tools([slow2], tmp_path_factory.mktemp("cache"), lambda text: None)
    yield opened
    opened.close()
