"""A batch job from options, a site and defaults; what is done with its script, and with what its ranks have written."""

from __future__ import annotations

import filecmp
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankscope.capture.run_folder import RUN_MANIFEST
from rankscope.errors import RankscopeError, UsageError
from rankscope.files import copy_file, is_temporary, open_private
from rankscope.jobs import pbs, slurm
from rankscope.jobs.launchers import LAUNCHERS
from rankscope.jobs.scheduler import Scheduler, follow, require, submit
from rankscope.jobs.script import EXIT_CODE
from rankscope.jobs.sites import KEYS, load_site
from rankscope.jobs.spec import Spec, Step, parse_count, parse_variables, parse_walltime

SCHEDULERS = {"pbs": pbs.SCHEDULER, "slurm": slurm.SCHEDULER}

_DEFAULTS: dict[str, Any] = {"nodes": 1, "ppn": 1, "walltime": "0:30:00", "tmpdir": "/tmp"}
_TEXTS = [
    name for name in KEYS if KEYS[name] is str and name not in ("scheduler", "launcher", "walltime", "tmpdir")
]


def make_spec(
    scheduler: Scheduler, given: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], **more: Any
) -> Spec:
    """The job of these options: ``given`` by name, None where an option is missing; then its site; then defaults.

    ``steps`` are keywords of Step; one without nodes and ranks gets the job's.
    """
    site_name = given.get("site")
    site = load_site(site_name) if site_name else {"env": {}}
    if site.get("scheduler", scheduler.name) != scheduler.name:
        raise UsageError(
            f"--site {site_name} is a machine with {site['scheduler']}",
            why=f"The script asked for is one for {scheduler.title}.",
            hint=f"Write: rankscope job {site['scheduler']} --site {site_name} ...",
        )

    def chosen(name: str) -> Any:
        value = given.get(name)
        return value if value is not None else site.get(name, _DEFAULTS.get(name))

    nodes, ppn = parse_count("--nodes", chosen("nodes")), parse_count("--ppn", chosen("ppn"))
    launcher, outer = _launchers(given.get("launcher"), site, scheduler)
    modules = [name for text in given.get("modules") or () for name in text.split(",") if name.strip()]
    if modules:  # in place of the site's, but found where the site's are
        modules = [*(line for line in site.get("modules", ()) if line.split()[:1] == ["use"]), *modules]
    texts: dict[str, Any] = {name: chosen(name) or None for name in _TEXTS}  # '' is: not the site's
    spec = Spec(
        nodes=nodes,
        ppn=ppn,
        walltime_s=parse_walltime(chosen("walltime")),
        launcher=launcher,
        launcher_outer=outer,
        modules=tuple(modules or site.get("modules", ())),
        env={**site["env"], **parse_variables(given.get("env") or ())},
        login=site.get("login", False),
        steps=tuple(Step(**{"nodes": nodes, "ppn": ppn, **step}) for step in steps),
        directives=(*site.get("directives", ()), *(given.get("directive") or ())),
        tmpdir=chosen("tmpdir"),
        **texts,
        **more,
    )
    spec.check()
    return spec


def _launchers(given: str | None, site: Mapping[str, Any], scheduler: Scheduler) -> tuple[str, str]:
    """What starts the ranks, and what starts one process on every node."""
    outer = site.get("launcher", scheduler.launcher)
    launcher = given or outer
    if launcher != "torchrun" and launcher not in LAUNCHERS:
        raise UsageError(
            f"the site's launcher '{launcher}' is not known",
            why=f"Known launchers: {', '.join(LAUNCHERS)}, torchrun.",
            hint="Correct the site's file.",
        )
    if launcher != "torchrun":
        return launcher, launcher
    return launcher, scheduler.launcher if outer == "torchrun" else outer


def default_name(command: Sequence[str]) -> str:
    """The script's name, as far as a scheduler can show it (PBS: 15 characters, a letter first)."""
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    if not scripts and command[0] == "rankscope" and len(command) > 2:
        scripts = [command[2]]  # rankscope bench seqpar
    stem = Path(scripts[0] if scripts else command[0]).stem
    return re.sub(r"[^A-Za-z0-9_.-]", "-", stem).lstrip("-.0123456789")[:15] or "job"


def write_script(path: Path, text: str) -> None:
    """The script is for its owner: it works only with the secrets of its command and variables."""
    try:
        with open_private(path, "w", encoding="utf-8") as file:
            file.write(text)
        path.chmod(0o700)
    except OSError as error:
        raise RankscopeError(
            f"cannot write {path}", why=f"{error.strerror}.", hint="Name another file: --script FILE"
        ) from error


def submit_script(scheduler: Scheduler, spec: Spec, text: str, written: Path | None) -> str:
    """The id of the job. A script that was not ``written`` is submitted from a temporary file."""
    make_output_folders(spec)
    if written is not None:
        return submit(scheduler, written)
    with tempfile.TemporaryDirectory(prefix="rankscope-job-") as folder:
        path = Path(folder) / f"{spec.name}.sh"
        path.write_text(text, encoding="utf-8")
        return submit(scheduler, path)


def make_output_folders(spec: Spec) -> None:
    """A scheduler does not make the folders of -o and -e: without them the output is lost, or the job is."""
    for path in (spec.stdout, spec.stderr):
        folder = (path or "").rpartition("/")[0]
        if folder and "%" not in folder:
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RankscopeError(
                    f"cannot make {folder} for the job's output",
                    why=f"{error.strerror}.",
                    hint="Name another: --stdout PATH --stderr PATH",
                ) from error


def wait_for(scheduler: Scheduler, spec: Spec, job: str, on_state: Callable[[str], None]) -> int:
    """The exit code of a job, once it has ended; ``on_state`` gets every new state."""
    state = follow(scheduler, job, on_state)
    code = state.code if state.code is not None else _recorded_code(spec, job)
    if code is None:
        raise RankscopeError(
            f"the exit code of job {job} is not known",
            why=f"{scheduler.title} does not report it.",
            hint="See its output file and the run folder.",
        )
    return code


def _recorded_code(spec: Spec, job: str) -> int | None:
    """What the script itself wrote into the run folder, for schedulers that do not keep exit codes."""
    try:
        recorded_job, code = (Path(spec.run_folder(job)) / EXIT_CODE).read_text().split()
        return int(code) if recorded_job.partition(".")[0] == job.partition(".")[0] else None
    except (OSError, ValueError):
        return None


def scheduler_here() -> Scheduler | None:
    """The scheduler of this machine. Slurm first: a qsub that comes with Slurm is not PBS."""
    for scheduler in (slurm.SCHEDULER, pbs.SCHEDULER):
        if shutil.which(scheduler.submit[0]):
            return scheduler
    return None


def find_scheduler(name: str | None) -> Scheduler:
    """The named one, else the one of this machine."""
    if name is not None:
        require(SCHEDULERS[name])
        return SCHEDULERS[name]
    if here := scheduler_here():
        return here
    raise RankscopeError(
        "there is no scheduler on this machine",
        why="Neither sbatch nor qsub is on PATH.",
        hint="Run this on the machine the job was submitted from.",
    )


def collect(source: Path, run: Path) -> int:
    """Copy every file of ``source``, however deep, to the same place in ``run``; returns how many were copied.

    The files are those that one node's ranks have written. All nodes do this at the same time.

    Each file appears whole, and has one writer. rankscope.json is the same job's on every node: the first one stays.
    Any other file that another node has written with other content is an error, after the rest is copied.
    """
    copied, refused = 0, []
    for path in sorted(source.rglob("*")):
        if not path.is_file() or is_temporary(path.name):
            continue
        target = run / path.relative_to(source)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if copy_file(path, target):
                copied += 1
            elif target.name != RUN_MANIFEST and not filecmp.cmp(path, target, shallow=False):
                refused.append(str(path.relative_to(source)))
        except OSError as error:
            raise RankscopeError(
                f"cannot copy {path} to {target}",
                why=f"{error.strerror or error}.",
                hint=f"The files stay in {source} on {socket.gethostname()}.",
            ) from error
    if refused:
        raise RankscopeError(
            f"{', '.join(refused)} of {socket.gethostname()} was not copied",
            why=f"Another node has written a different file of that name to {run}.",
            hint=f"The files stay in {source} on {socket.gethostname()}. Do two nodes count the same ranks?",
        )
    return copied
