"""Build hook: renders docs/reports to HTML in the wheel, where the report reads its definitions.

An editable install needs no rendered pages: rankscope.views.report.definitions reads docs/reports itself.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DefinitionsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        # Loaded by path: importing rankscope.views needs packages that the build environment does not have.
        source = root / "src" / "rankscope" / "views" / "report" / "definitions.py"
        spec = importlib.util.spec_from_file_location("definitions", source)
        assert spec and spec.loader
        definitions = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(definitions)
        self._folder = tempfile.TemporaryDirectory()
        for report, html in definitions.render_pages(root / "docs" / "reports").items():
            (Path(self._folder.name) / f"{report}.html").write_text(html, encoding="utf-8")
        build_data["force_include"][self._folder.name] = "rankscope/definitions"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()
