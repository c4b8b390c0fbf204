"""A folder that builds and runs an image with rankscope in it: Dockerfile or apptainer definition, .env, scripts.

The files are copied from templates/container; only .env is made here.
"""

from __future__ import annotations

import gzip
import io
import re
import shlex
import tarfile
from dataclasses import dataclass
from pathlib import Path

from rankscope.errors import UsageError

ENGINES = ("docker", "podman", "apptainer")
DEFAULT_BASE = "nvcr.io/nvidia/pytorch:25.01-py3"
ARCHIVE = "rankscope.tar.gz"
_TEMPLATES = Path(__file__).parent / "templates" / "container"
_PACKAGE = Path(__file__).parents[1]
_IMAGE = re.compile(r"[a-z0-9]+([._/-][a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}")
_REFERENCE = re.compile(r"[\w][\w.:/@-]*")
_SIZE = re.compile(r"[1-9]\d*[kmg]")


@dataclass(frozen=True)
class Container:
    """The settings that are written to .env, where they can be changed later."""

    engine: str = "docker"
    base: str = DEFAULT_BASE
    image: str = "rankscope"
    tag: str = "latest"
    registry: str = ""
    nsys: bool = True
    mpi: bool = False
    efa: bool = False
    nccl_tests: bool = False
    efa_version: str = "latest"
    nccl_tests_version: str = "v2.13.10"
    gpus: str = "all"
    shm_size: str = "16g"
    counters: bool = False
    reports: str = "./reports"


def check(choices: Container) -> None:
    """Refuse what cannot be built, before anything is written. install.sh checks the same for an edited .env."""
    if choices.efa and not choices.mpi:
        raise UsageError(
            "--efa needs --mpi", why="The EFA plug-in is used through MPI.", hint="Give both: --mpi --efa"
        )
    if choices.nccl_tests and not choices.efa:
        raise UsageError(
            "--nccl-tests needs --efa",
            why="The tests measure the network that EFA provides.",
            hint="Give all three: --mpi --efa --nccl-tests",
        )
    for option, value, form, example in (
        ("--base", choices.base, _REFERENCE, DEFAULT_BASE),
        ("--image", choices.image, _IMAGE, "team/train"),
        ("--tag", choices.tag, _TAG, "2.4-cu124"),
        ("--registry", choices.registry or "x", _REFERENCE, "registry.example.org/team"),
        ("--efa-version", choices.efa_version, _TAG, "1.34.0"),
        ("--nccl-tests-version", choices.nccl_tests_version, _TAG, "v2.13.10"),
        ("--gpus", choices.gpus, re.compile(r"all|none|\d+"), "all, none or 2"),
        ("--shm-size", choices.shm_size, _SIZE, "16g"),
    ):
        if not form.fullmatch(value):
            raise UsageError(
                f"{option} {value!r} cannot be used",
                why="Container engines refuse it.",
                hint=f"For example: {option} {example}",
            )
    if "\n" in choices.reports:
        raise UsageError("--reports contains a line break", hint="Name a folder.")


def environment(choices: Container) -> str:
    """The text of .env; sh reads it."""
    values = {
        "ENGINE": choices.engine,
        "BASE_IMAGE": choices.base,
        "REGISTRY": choices.registry,
        "IMAGE": choices.image,
        "TAG": choices.tag,
        "CONTAINER": choices.image.replace("/", "-"),
        "WITH_NSYS": _digit(choices.nsys),
        "WITH_MPI": _digit(choices.mpi),
        "WITH_EFA": _digit(choices.efa),
        "WITH_NCCL_TESTS": _digit(choices.nccl_tests),
        "EFA_VERSION": choices.efa_version,
        "NCCL_TESTS_VERSION": choices.nccl_tests_version,
        "GPUS": choices.gpus,
        "SHM_SIZE": choices.shm_size,
        "COUNTERS": _digit(choices.counters),
        "REPORTS": choices.reports,
    }
    lines = [f"{name}={shlex.quote(value) if value else ''}" for name, value in values.items()]
    return "\n".join(
        ["# The settings of ./build.sh and the other scripts; they can be changed here.", *lines, ""]
    )


def write(choices: Container, folder: Path) -> list[Path]:
    """Write the folder; returns its files."""
    check(choices)
    folder.mkdir(parents=True, exist_ok=True)
    skipped = "Dockerfile" if choices.engine == "apptainer" else "image.def"
    written = []
    for template in _TEMPLATES.iterdir():
        if template.name == skipped:
            continue
        target = folder / template.name
        target.write_bytes(template.read_bytes())
        target.chmod(0o755 if target.suffix == ".sh" else 0o644)
        written.append(target)
    settings = folder / ".env"
    settings.write_text(environment(choices), encoding="utf-8")
    archive = folder / ARCHIVE
    archive.write_bytes(package_archive())
    return sorted([*written, settings, archive])


def package_archive() -> bytes:
    """This installation of rankscope, so that the same version captures in the image and reads here."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(_PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                entry = tarfile.TarInfo(str(path.relative_to(_PACKAGE.parent)))
                entry.size, entry.mode = path.stat().st_size, 0o644
                with path.open("rb") as file:
                    archive.addfile(entry, file)
    return buffer.getvalue()


def _digit(flag: bool) -> str:
    return "1" if flag else "0"
