"""Build hook: compiles the C parts, and renders docs/reports and docs/findings to HTML in the wheel, where the report
reads them; `rankscope help` reads docs/findings as they are.

An editable install needs no rendered pages: rankscope.views.report.definitions reads docs itself.

After a change of the C parts, `python hatch_build.py` compiles them again in place; with a folder, those of a copy.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path("src", "rankscope", "native")
_LIBRARY = "_native.abi3.so"
_FLAGS = ["-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
_HARDENING = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
"""Left out where the compiler does not take them."""
_SHARED = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
_WISH = "RANKSCOPE_NATIVE"
"""0: build without the C parts; 1: fail where they cannot be built, as releases must. RANKSCOPE_CFLAGS adds flags."""


class BuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        self._temporary = tempfile.TemporaryDirectory()
        made = Path(self._temporary.name)
        if version == "editable":
            # pip builds an editable package twice: first only for its metadata.
            if not _is_current(root / _FOLDER) and self._compiled(root, made):
                shutil.copyfile(made / _LIBRARY, root / _FOLDER / _LIBRARY)
            return
        if self._compiled(root, made):
            build_data["force_include"][str(made / _LIBRARY)] = f"rankscope/native/{_LIBRARY}"
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"
        pages = made / "definitions"
        shutil.copytree(root / "docs" / "findings", pages / "findings")
        for name, html in _definitions(root).render_pages(root / "docs").items():
            (pages / f"{name}.html").write_text(html, encoding="utf-8")
        build_data["force_include"][str(pages)] = "rankscope/definitions"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._temporary.cleanup()

    def _compiled(self, root: Path, folder: Path) -> bool:
        """Compile the C parts into this folder; False, with a warning, where that cannot be done."""
        wish = os.environ.get(_WISH, "")
        if wish == "0":
            return False
        why = _compile(root / _FOLDER, folder / _LIBRARY)
        if why and wish == "1":
            raise RuntimeError(f"the C parts cannot be built: {why}")
        if why:
            self.app.display_warning(
                f"rankscope is installed without its C parts: it reads more slowly, and no .xplane.pb: {why}"
            )
        return not why


def _is_current(sources: Path) -> bool:
    """Whether the library beside the sources is newer than all of them, and no other flags are asked for."""
    library = sources / _LIBRARY
    if not library.is_file() or os.environ.get("RANKSCOPE_CFLAGS"):
        return False
    inputs = [Path(__file__), *sources.glob("*.[ch]")]
    return library.stat().st_mtime_ns > max(path.stat().st_mtime_ns for path in inputs)


def _compile(sources: Path, library: Path) -> str:
    """Compile; returns why it failed, '' if it did not."""
    if sys.version_info < (3, 11) or sys.implementation.name != "cpython":
        return "they need CPython 3.11 or newer"
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").is_file():
        return f"there is no Python.h in {include}"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    # ARCHFLAGS: how tools that build wheels on a Mac say for which processor.
    more = shlex.split(f"{os.environ.get('ARCHFLAGS', '')} {os.environ.get('RANKSCOPE_CFLAGS', '')}")
    files = [path.name for path in sorted(sources.glob("*.c"))]
    for hardening in (_HARDENING, []):
        flags = [*_FLAGS, *hardening, *more, f"-I{include}", *_SHARED]
        try:
            ended = subprocess.run(
                [*compiler, *flags, *files, "-o", str(library)], cwd=sources, capture_output=True, text=True
            )
        except OSError as error:
            return f"{compiler[0]}: {error.strerror}"
        if ended.returncode == 0:
            return ""
    return f"{compiler[0]}: {ended.stderr.strip()[-1000:] or f'exit status {ended.returncode}'}"


def _definitions(root: Path) -> Any:
    """Loaded by path: importing rankscope.views needs packages that the build environment does not have."""
    source = root / "src" / "rankscope" / "views" / "report" / "definitions.py"
    spec = importlib.util.spec_from_file_location("definitions", source)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    folder = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent / _FOLDER).resolve()
    sys.exit(_compile(folder, folder / _LIBRARY) or None)
