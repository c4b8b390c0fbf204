"""A folder that builds and runs an image with rankscope in it: Dockerfile or apptainer definition, .env, scripts.

The files are copied from templates/container; only .env is made here.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shlex
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from rankscope.errors import UsageError
from rankscope.jobs.spec import check_forms
from rankscope.version import __version__

ENGINES = ("docker", "podman", "apptainer")
DEFAULT_BASE = "nvcr.io/nvidia/pytorch:25.01-py3"
WHEEL_FOLDER = "wheel"
_TEMPLATES = Path(__file__).parent / "templates" / "container"
_PACKAGE = Path(__file__).parents[1]
_TAG = r"\w[\w.-]{0,127}"
_REFERENCE = r"\w[\w.:/@-]*"
_METADATA = "Metadata-Version: 2.1\nName: rankscope\nVersion: {version}\nRequires-Python: >=3.10\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: rankscope\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True)
class Container:
    """The settings that are written to .env, where they can be changed later."""

    OPTIONS: ClassVar = {
        "": f"""\
--engine {{{",".join(ENGINES)}}}  what builds and runs it
--base IMAGE  with torch in it
--image NAME  its name
--tag TAG  its tag
--registry HOST/PATH  where ./push.sh pushes
""",
        "what is installed in addition to rankscope": """\
--no-nsys  no Nsight Systems (by default it is installed where the base lacks it)
--mpi  OpenMPI and ssh
--efa  the libraries of AWS's EFA (needs --mpi)
--nccl-tests  NVIDIA's nccl-tests (needs --efa)
--efa-version V  of those libraries
--nccl-tests-version V  of those tests
""",
        "how ./run.sh starts the container": """\
--gpus N  all, none or a number
--shm-size SIZE  of /dev/shm
--counters  SYS_ADMIN, which ncu and --gpu-metrics-device need
--reports DIR  the host's folder that is /reports inside: what is written elsewhere is lost with the container
--tool {torch,nsys,ncu,none}  the profiler of ./test.sh; none: the example without one, to compare with
""",
    }
    engine: str = "docker"
    base: str = DEFAULT_BASE
    registry: str = ""
    image: str = "rankscope"
    tag: str = "latest"
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
    tool: str = "torch"


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
    check_forms(
        "Container engines refuse it.",
        ("--base", choices.base, _REFERENCE, DEFAULT_BASE),
        ("--image", choices.image, r"[a-z0-9]+([._/-][a-z0-9]+)*", "team/train"),
        ("--tag", choices.tag, _TAG, "2.4-cu124"),
        ("--registry", choices.registry or None, _REFERENCE, "registry.example.org/team"),
        ("--efa-version", choices.efa_version, _TAG, "1.34.0"),
        ("--nccl-tests-version", choices.nccl_tests_version, _TAG, "v2.13.10"),
        ("--gpus", choices.gpus, r"all|none|\d+", "all, none or 2"),
        ("--shm-size", choices.shm_size, r"[1-9]\d*[kmg]", "16g"),
    )
    if "\n" in choices.reports:
        raise UsageError("--reports contains a line break", hint="Name a folder.")


def environment(choices: Container) -> str:
    """The text of .env; sh reads it."""
    with_names = ("nsys", "mpi", "efa", "nccl_tests")
    lines = []
    for name, value in asdict(choices).items():
        setting = "BASE_IMAGE" if name == "base" else f"{'WITH_' * (name in with_names)}{name.upper()}"
        text = str(int(value)) if isinstance(value, bool) else value
        lines.append(f"{setting}={shlex.quote(text) if text else ''}")
        if name == "tag":
            lines.append(f"CONTAINER={shlex.quote(choices.image.replace('/', '-'))}")
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
    for old in (folder / WHEEL_FOLDER).glob("*.whl"):  # the image installs the one that is there
        old.unlink()
    name, content = package_wheel()
    wheel = folder / WHEEL_FOLDER / name
    wheel.parent.mkdir(exist_ok=True)
    wheel.write_bytes(content)
    return sorted([*written, settings, wheel])


def package_wheel() -> tuple[str, bytes]:
    """This installation of rankscope as a wheel: the same version captures in the image and reads here.

    It names no dependencies: capturing needs none, and the image's script installs those for reading, if it can.
    """
    about = f"rankscope-{__version__}.dist-info"
    paths = [
        path for path in sorted(_PACKAGE.rglob("*")) if path.is_file() and "__pycache__" not in path.parts
    ]
    files = {path.relative_to(_PACKAGE.parent).as_posix(): path.read_bytes() for path in paths}
    files[f"{about}/METADATA"] = _METADATA.format(version=__version__).encode()
    files[f"{about}/WHEEL"] = _WHEEL.encode()
    files[f"{about}/entry_points.txt"] = b"[console_scripts]\nrankscope = rankscope.cli:run\n"
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()) for name in files}
    record = [f"{name},sha256={digests[name].decode().rstrip('=')},{len(files[name])}" for name in files]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():  # without times: the same files give the same wheel
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return f"rankscope-{__version__}-py3-none-any.whl", buffer.getvalue()
