"""The image of `rankscope job container`, and the jobs of `rankscope job k8s` in it, on pods of this machine.

Real: install.sh, pip, sshd with the operator's keys, mpirun over ssh, torchrun, torch, nsys. Not real: apt-get (a fake:
the packages are installed here already), the cluster (tests/integration/pods does what the MPI operator does), the
volume (a folder that all pods see).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.jobs import BIN, PYTHON, manifests, needs, needs_torch
from integration.nsight import NSYS, needs_nsys, reports

PODS = Path(__file__).with_name("pods")
PATH = f"{BIN}:{NSYS.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EXAMPLE = "/opt/rankscope/lm_example.py"
# mpi_job_controller.go, newLauncherPodTemplate
OPERATOR = {
    "K_MPI_JOB_ROLE": "launcher",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "NVIDIA_VISIBLE_DEVICES": "",
}

pytestmark = [
    pytest.mark.slow,
    needs("mpirun.openmpi", "openmpi-bin"),
    needs("/usr/sbin/sshd", "openssh-server"),
    needs("ip", "iproute2"),
]


class Pods:
    """Pods in an image: this machine with the files of `upper`, where what they write goes too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.upper = folder / "upper"
        self.reports = self.upper / "reports" / "train"

    def run(self, words: list[str], *, workers: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(PODS), str(self.folder), str(workers), *words]
        variables = {"PATH": PATH, "HOME": "/root", "OMP_NUM_THREADS": "1", **env}
        return subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=240, check=False
        )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layer that a build would add to its base; the base is this machine."""
    folder = tmp_path_factory.mktemp("image")
    pods = Pods(folder)
    if pods.run(["true"]).returncode:
        pytest.skip("namespaces and overlays cannot be made here (they need root)")
    made = folder / "made"
    words = [PYTHON, "-m", "rankscope", "job", "container", "--mpi", "--no-nsys", "-o", str(made)]
    subprocess.run(words, check=True, capture_output=True)
    for line in (made / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            *sources, target = line.split()[1:]
            inside = pods.upper / target.strip("/")
            for source in sources:
                whole = (made / source).is_dir()
                inside.mkdir(parents=True, exist_ok=True)
                if whole:
                    shutil.copytree(made / source, inside, dirs_exist_ok=True)
                else:
                    shutil.copy(made / source, inside)
    home = pods.upper / "root"
    home.mkdir(exist_ok=True)
    (home / ".bashrc").touch()  # this machine's own changes PATH
    fake = pods.upper / "usr" / "local" / "sbin" / "apt-get"
    fake.parent.mkdir(parents=True)
    fake.write_text("#!/bin/sh\n# a fake: the packages are in the base already\n")
    fake.chmod(0o755)
    choices = {"WITH_MPI": "1", "WITH_NSYS": "0"}
    base = "/opt/base/lib"  # as an ENV of the base image
    done = pods.run(["sh", "/opt/rankscope/install.sh"], workers=0, LD_LIBRARY_PATH=base, **choices)
    assert done.returncode == 0, done.stdout + done.stderr
    return pods.upper


@pytest.fixture
def pods(image: Path, tmp_path: Path) -> Pods:
    made = Pods(tmp_path / "pods")
    made.folder.mkdir()
    # with the attributes and the special files that mark what an overlay has removed
    subprocess.run(["cp", "-a", str(image), str(made.upper)], check=True)
    return made


def manifest(*options: str, command: list[str]) -> dict[str, Any]:
    words = [PYTHON, "-m", "rankscope", "job", "k8s", "--image", "i", "--name", "train", "--pvc", "reports"]
    done = subprocess.run([*words, *options, "--", *command], check=True, capture_output=True, text=True)
    job: dict[str, Any] = yaml.safe_load(done.stdout)
    return job


def as_kubernetes_starts(container: dict[str, Any], **env: str) -> tuple[list[str], dict[str, str]]:
    """A container's command and variables: $(NAME) replaced where it is set, $$ is $."""
    env = {**{one["name"]: one["value"] for one in container.get("env", [])}, **env}

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else env.get(match[1], match[0])

    return [re.sub(r"\$\$|\$\((\w+)\)", value, word) for word in container["command"]], env


def launcher(job: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    spec = job["spec"]["mpiReplicaSpecs"]
    assert "command" not in spec["Worker"]["template"]["spec"]["containers"][0], "the operator starts sshd"
    slots = {"OMPI_MCA_orte_set_default_slots": str(job["spec"]["slotsPerWorker"])}
    [container] = spec["Launcher"]["template"]["spec"]["containers"]
    return as_kubernetes_starts(container, **OPERATOR, **slots)


@pytest.mark.thorough
def test_rankscope_over_ssh(pods: Pods) -> None:
    """sshd passes none of the image's variables on: an ENV PYTHONPATH would be missing here."""
    show = "rankscope --version; command -v rankscope orted; python3 -c 'import rankscope; print(rankscope.__file__)'"
    ssh = f"ssh {OPERATOR['OMPI_MCA_plm_rsh_args']} train-worker-0.train.default.svc"
    words = ["sh", "-c", f'{ssh} "hostname; $0; env"', show]
    done = pods.run(words, workers=1)
    assert done.returncode == 0, done.stdout + done.stderr
    host, version, program, orted, file, *env = done.stdout.splitlines()
    assert (host, orted) == ("train-worker-0", "/usr/bin/orted")
    assert version.startswith("rankscope ")
    assert Path(program).name == "rankscope"
    assert "site-packages/rankscope" in file, "installed, not found through a variable"
    assert not [line for line in env if line.startswith("PYTHONPATH=")]
    assert "LD_LIBRARY_PATH=/opt/base/lib" in env, "what orted needs"
    assert done.stderr == "", "no question about the host's key, and no warning"


@pytest.mark.thorough
@needs_torch
def test_mpijob(pods: Pods) -> None:
    """From the manifest: the launcher waits for its workers, every rank is captured, the tables are in its output."""
    job = manifest("--nodes", "2", "--ranks", "all", "--stats", command=["python3", EXAMPLE])
    words, env = launcher(job)
    done = pods.run(words, workers=2, LATE="3", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    found = manifests(pods.reports)
    assert {rank: one["host"] for rank, one in found.items()} == {0: "train-worker-0", 1: "train-worker-1"}
    assert "nats a byte" in done.stdout
    assert "A step takes" in done.stdout and "2 ranks" in done.stdout, "what kubectl logs shows"


@pytest.mark.thorough
def test_an_mpijob_that_cannot_start_says_why(pods: Pods) -> None:
    """Without the key in the workers waiting does not help."""
    words, env = launcher(manifest("--nodes", "1", command=["true"]))
    spoiled = ["sh", "-c", 'rm /root/.ssh/authorized_keys; exec "$@"', "sh", *words]
    done = pods.run(spoiled, workers=1, **env)
    assert done.returncode == 1
    assert "rankscope: cannot reach train-worker-0.train.default.svc over ssh: " in done.stderr
    assert "Permission denied" in done.stderr


@pytest.mark.thorough
@needs_torch
@needs_nsys
def test_mpijob_with_one_report_a_node(pods: Pods) -> None:
    """torchrun on every node, nsys around it; the ranks meet at worker 0."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
    show = f"import os; print(os.uname().nodename + ' has ' + ' '.join(os.environ[name] for name in {names}))"
    options = [
        "--nodes",
        "2",
        "--ppn",
        "2",
        "--launcher",
        "torchrun",
        "--tool",
        "nsys",
        "-t",
        "nvtx",
        "--per-node",
    ]
    words, env = launcher(manifest(*options, command=["python3", "-c", show]))
    done = pods.run(words, workers=2, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert reports(pods.reports) == ["node-00000.nsys-rep", "node-00001.nsys-rep"]
    lines = sorted(re.findall(r"train-worker-. has .*", done.stdout.replace("\r", "")))
    hosts = [f"train-worker-{rank // 2}" for rank in range(4)]
    first = "train-worker-0.train.default.svc"
    assert lines == [f"{host} has {rank} 4 {first}" for rank, host in enumerate(hosts)]


@pytest.mark.thorough
@needs_torch
@needs_nsys
def test_pytorchjob_with_one_report_a_node(pods: Pods) -> None:
    """Two pods with the variables of the training operator (envvar.go): RANK is the pod's number there."""
    options = ["--kind", "pytorchjob", "--nodes", "2", "--tool", "nsys", "-t", "nvtx", "--per-node"]
    job = manifest(*options, command=["python3", "-c", "import os; print('rank', os.environ['RANK'])"])
    starts = []
    for rank, role in enumerate(("Master", "Worker")):
        operator = {"MASTER_ADDR": "localhost", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": str(rank)}
        operator |= {"PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "1", "PET_NNODES": "2"}
        [container] = job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]["containers"]
        words, env = as_kubernetes_starts(container, **operator)
        starts.append(["env", *(f"{name}={value}" for name, value in env.items()), *words])
    run_both = (
        "import json, subprocess, sys\n"
        "pods = [subprocess.Popen(words) for words in json.loads(sys.argv[1])]\n"
        "sys.exit(max(pod.wait() for pod in pods))\n"
    )
    done = pods.run([PYTHON, "-c", run_both, json.dumps(starts)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert reports(pods.reports) == ["node-00000.nsys-rep", "node-00001.nsys-rep"]
    assert sorted(re.findall(r"rank \d", done.stdout)) == ["rank 0", "rank 1"]
