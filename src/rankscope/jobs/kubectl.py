"""Calls of kubectl: create a job, find and copy its reports, delete it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankscope.errors import RemoteError, ToolError
from rankscope.jobs import k8s

_READY_SECONDS = 120


class Kubectl:
    """kubectl in one namespace."""

    def __init__(self, namespace: str = "", context: str = "") -> None:
        program = shutil.which("kubectl")
        if program is None:
            raise ToolError(
                "kubectl is not installed here",
                why="Jobs are created, copied from and deleted with it, with your own access to the cluster.",
                hint="Install it, or write the manifest (--script FILE) and use it on a machine with kubectl.",
            )
        cluster = [*(["--context", context] if context else []), *(["-n", namespace] if namespace else [])]
        self._start = [program, *cluster]

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._start, *words], input=stdin, capture_output=True, text=True, check=False
        )

    def ask(self, *words: str, stdin: str = "") -> str:
        """Its output; when it fails, an error with the last line of its stderr."""
        done = self.run(*words, stdin=stdin)
        if done.returncode:
            raise RemoteError(
                f"kubectl {' '.join(words[:3])} failed",
                why=_last_line(done.stderr) or f"Its exit code was {done.returncode}.",
                hint="Check the cluster and the namespace: kubectl config get-contexts; --namespace NAME.",
            )
        return done.stdout


def submit(job: k8s.K8sJob, text: str, kubectl: Kubectl, *, install: bool, log: Callable[[str], None]) -> str:
    """Create the job, after a check that the cluster knows its kind. Returns kubectl's output.

    ``install`` allows to install the operator first, if the cluster lacks it; ``log`` gets what is applied.
    """
    _, name, operator = k8s.KINDS[job.job_kind]
    found = kubectl.run("get", "crd", operator.resource) if operator is not None else None
    # Reading definitions is often forbidden to users who may create jobs.
    if operator is not None and found is not None and found.returncode and "Forbidden" not in found.stderr:
        if "NotFound" not in found.stderr:
            raise RemoteError(
                "cannot reach the cluster",
                why=_last_line(found.stderr),
                hint="Check: kubectl cluster-info; kubectl config get-contexts",
            )
        if not install:
            raise RemoteError(
                f"this cluster has no {name}",
                why=f"It lacks {operator.title}: there is no resource {operator.resource}.",
                hint="Install it: --install-operator. Or use a plain Job, which every cluster has: --kind job",
            )
        # Its project's own manifest; then wait until it can take jobs.
        log(f"Installing {operator.title}: kubectl {' '.join(operator.apply)}")
        for line in kubectl.ask(*operator.apply).strip().splitlines():
            log(f"  {line}")
        limit = f"--timeout={_READY_SECONDS}s"
        kubectl.ask("wait", "--for=condition=Established", limit, f"crd/{operator.resource}")
        where = ("-n", operator.namespace, f"deployment/{operator.deployment}")
        kubectl.ask("wait", "--for=condition=Available", limit, *where)
    return kubectl.ask("create", "-f", "-", stdin=text).strip()


def fetch(
    name: str, kind: str, target: Path, kubectl: Kubectl, namespace: str, log: Callable[[str], None]
) -> list[Path]:
    """Copy the reports of a job to `target`; returns the files. Works when its pods have ended."""
    notes = _job(name, kind, kubectl)["metadata"].get("annotations") or {}
    if k8s.REPORTS_NOTE not in notes or k8s.IMAGE_NOTE not in notes:
        raise RemoteError(
            f"the place of job {name}'s reports is not known",
            why="The job has no annotation for it, which `rankscope job k8s` would have written.",
            hint="Copy them by hand: kubectl cp POD:PATH DIR",
        )
    reports, image = notes[k8s.REPORTS_NOTE], notes[k8s.IMAGE_NOTE]
    nodes = {""}
    if not reports.startswith("pvc:"):
        pods = json.loads(kubectl.ask("get", "pods", "-l", f"{k8s.JOB_LABEL}={name}", "-o", "json"))
        nodes = {pod["spec"].get("nodeName", "") for pod in pods["items"]} - {""}
    if not nodes:
        raise RemoteError(
            f"the nodes of job {name} are not known",
            why="Its pods were deleted or never started, and the reports are on the nodes' own disks.",
            hint="See: kubectl get pods -o wide. With --pvc NAME, reports do not depend on nodes.",
        )
    target.mkdir(parents=True, exist_ok=True)
    for number, node in enumerate(sorted(nodes)):
        pod = f"{name}-reader-{number}"
        log(f"Copying from {node or reports.partition(':')[2]}")
        kubectl.ask("create", "-f", "-", stdin=k8s.reader_pod(pod, name, image, reports, node, namespace))
        try:
            kubectl.ask("wait", "--for=condition=Ready", f"--timeout={_READY_SECONDS}s", f"pod/{pod}")
            # A node on which no rank was captured has no folder, which is not an error.
            source = f"{k8s.REPORTS}/{name}"
            if kubectl.run("exec", pod, "--", "test", "-d", source).returncode == 0:
                kubectl.ask("cp", "--retries=5", f"{pod}:{source}/.", str(target))
        finally:
            kubectl.run("delete", "pod", pod, "--wait=false", "--ignore-not-found")
    files = sorted(path for path in target.rglob("*") if path.is_file())
    if not files:
        with contextlib.suppress(OSError):
            target.rmdir()
        raise RemoteError(
            f"job {name} has written no reports",
            why=f"There is nothing in {reports.partition(':')[2]} under {name}.",
            hint=f"See its output: kubectl logs -l {k8s.JOB_LABEL}={name} --all-containers",
        )
    return files


def delete(name: str, kind: str, kubectl: Kubectl) -> str:
    """Remove the job, its pods and its Service; the reports stay on their volume."""
    _job(name, kind, kubectl)
    text = kubectl.ask("delete", kind, name)
    if kind == "job":
        text += kubectl.ask("delete", "service", name, "--ignore-not-found")
    return text.strip()


def _job(name: str, kind: str, kubectl: Kubectl) -> dict[str, Any]:
    done = kubectl.run("get", kind, name, "-o", "json")
    if done.returncode:
        gone = "NotFound" in done.stderr
        raise RemoteError(
            f"there is no {kind} {name}" if gone else f"cannot get {kind} {name}",
            why=_last_line(done.stderr),
            hint=f"See: kubectl get {kind}; --namespace NAME or --kind {'|'.join(k8s.KINDS)} may be wrong.",
        )
    job: dict[str, Any] = json.loads(done.stdout)
    return job


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
