"""The programs that rankscope is compared with: where they are, how they are installed, what they are asked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from traces import ROOT, WORK

HTA_CODE = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
"""
TRACELENS_CODE = """
import sys
from TraceLens import TreePerfAnalyzer
analysis = TreePerfAnalyzer.from_file(sys.argv[1])
analysis.get_df_gpu_timeline()
analysis.get_df_kernels()
"""
ORJSON_CODE = "import sys, orjson; orjson.loads(open(sys.argv[1], 'rb').read())"
JSON_CODE = "import sys, json; json.load(open(sys.argv[1], encoding='utf-8'))"
SCANNER_CODE = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from pathlib import Path
from rankscope.readers.kineto.reader import KINETO
for batch in KINETO.open(Path(sys.argv[1])).batches():
    batch.columns()
    batch.close()
"""
"""One thread, and nothing is kept: what the part in C takes of reading a trace."""


@dataclass(frozen=True)
class PythonPeer:
    """A Python package with a virtual environment of its own in .bench/peers."""

    name: str
    package: str
    code: str
    installs: tuple[tuple[str, ...], ...]
    """Arguments of pip install, one call each."""

    @property
    def folder(self) -> Path:
        return WORK / "peers" / self.name.lower()

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def version(self) -> str | None:
        """None where it is not installed."""
        code = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        return _output([str(self.python), "-c", code]) if self.python.exists() else None

    def install(self) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.folder)], check=True)
        for words in self.installs:
            subprocess.run([str(self.python), "-m", "pip", "install", "--quiet", *words], check=True)


# The TraceLens of PyPI is another project. AMD's own also wants xprof, which only its readers of JAX traces use.
PYTHON_PEERS = {
    peer.name: peer
    for peer in (
        PythonPeer("orjson", "orjson", ORJSON_CODE, (("orjson",),)),
        PythonPeer("HTA", "HolisticTraceAnalysis", HTA_CODE, (("HolisticTraceAnalysis==0.5.0", "pandas<3"),)),
        PythonPeer(
            "TraceLens",
            "TraceLens",
            TRACELENS_CODE,
            (
                ("--no-deps", "git+https://github.com/AMD-AGI/TraceLens"),
                ("pandas<3", "tqdm", "orjson", "openpyxl", "tabulate", "PyYAML", "matplotlib"),
            ),
        ),
    )
}


def install_missing() -> None:
    """A peer that cannot be had is named, and left out."""
    for peer in PYTHON_PEERS.values():
        if peer.version() is None:
            try:
                peer.install()
            except subprocess.CalledProcessError as problem:
                print(f"{peer.name} could not be installed: {problem}", flush=True)


def find_trace_processor() -> str | None:
    return shutil.which("trace_processor") or shutil.which("trace_processor_shell")


def trace_processor(program: str, path: Path) -> list[object]:
    return [program, "-Q", "select count(*) from slice", path]


NO_TRACE_PROCESSOR = "trace_processor: not found (on PATH, or --trace-processor)"


def find_nsys() -> str | None:
    return shutil.which("nsys") or shutil.which(ROOT / ".venv" / "nsight" / "bin" / "nsys")


def program_version(program: str) -> str:
    """The first line of what `--version` prints."""
    return (_output([program, "--version"]) or "").partition("\n")[0]


def _output(words: list[str]) -> str | None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
