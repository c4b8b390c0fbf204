"""Kubernetes manifests with the profiler in them: MPIJob, PyTorchJob, or an indexed Job with its Service.

Only builds the text; jobs/kubectl.py calls the cluster.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TypeAlias

from rankscope.capture.job_name import script_name
from rankscope.errors import UsageError
from rankscope.jobs.yaml_text import Node, documents

Map: TypeAlias = dict[str, Node]

REPORTS = "/reports"
"""Where the volume for the reports is mounted in every container."""
HOST_REPORTS = "/tmp/rankscope"
JOB_LABEL = "rankscope/job"
REPORTS_NOTE = "rankscope/reports"
IMAGE_NOTE = "rankscope/image"
_PORT = 29500
_EFA_HUGEPAGES = "5120Mi"
"""As in AWS's own manifests for a pod with EFA."""
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,46}[a-z0-9])?")
_LAUNCHERS = ("torchrun", "mpirun", "mpiexec", "srun", "orterun")
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}

KINDS = {
    "mpijob": ("kubeflow.org/v2beta1", "MPIJob", "mpijobs.kubeflow.org", "the MPI operator"),
    "pytorchjob": (
        "kubeflow.org/v1",
        "PyTorchJob",
        "pytorchjobs.kubeflow.org",
        "Kubeflow's training operator",
    ),
    "job": ("batch/v1", "Job", "", ""),
}
"""For each kind: apiVersion, kind, the resource that must be installed, and the operator that installs it."""


@dataclass(frozen=True)
class K8sJob:
    """The command, the resources, and the profiler's options."""

    name: str
    image: str
    command: tuple[str, ...]
    kind: str = "mpijob"
    nodes: int = 1
    ppn: int = 1
    profile: tuple[str, ...] = ()
    """The options of `rankscope profile`, without -o: the reports go to the volume."""
    gpus: int | None = None
    """GPUs of a worker; as many as processes when None."""
    efa: int = 0
    hugepages: str = ""
    cpu: str = ""
    memory: str = ""
    shm: str = "16Gi"
    pvc: str = ""
    host_path: str = HOST_REPORTS
    namespace: str = ""
    counters: bool = False
    """Whether the tool reads the GPU's counters, which needs SYS_ADMIN."""
    env: dict[str, str] = field(default_factory=dict)

    @property
    def run_folder(self) -> str:
        return f"{REPORTS}/{self.name}"


def check(job: K8sJob) -> None:
    """Refuse what the cluster would refuse or cannot run, before anything is sent."""
    if not _NAME.fullmatch(job.name):
        raise UsageError(
            f"--name {job.name!r} is not a valid job name in Kubernetes",
            why="It becomes part of host names: lower-case letters, digits and '-', a letter first, at most 48.",
            hint="For example: --name train-4x8",
        )
    for option, number, least in (("--nodes", job.nodes, 1), ("--ppn", job.ppn, 1), ("--efa", job.efa, 0)):
        if number < least:
            raise UsageError(
                f"{option} {number} is too small", why=f"It is {least} or more.", hint=f"Give {option} N."
            )
    if not job.image:
        raise UsageError(
            "no --image",
            why="The pods run in an image that has rankscope and the training code in it.",
            hint="Give --image NAME; `rankscope job container` writes a folder that builds one.",
        )
    if not job.command:
        raise UsageError("no COMMAND to profile", hint="For example: rankscope job k8s … -- python train.py")
    if job.command[0].rpartition("/")[2] in _LAUNCHERS:
        raise UsageError(
            f"the command starts with {job.command[0]}",
            why=f"{KINDS[job.kind][1]} and rankscope start the ranks on every node themselves.",
            hint="Give the command of one rank: -- python train.py …",
        )
    if any("\0" in word or not _is_text(word) for word in job.command):
        raise UsageError(
            "the command is not valid text", why="A manifest is UTF-8.", hint="Remove the bytes that are not."
        )
    _check_names(job)
    _check_sizes(job)


def _check_names(job: K8sJob) -> None:
    for option, value, form, example in (
        ("--image", job.image, r"\w[\w.:/@-]*", "registry.example.org/team/train:1"),
        ("--pvc", job.pvc or "x", r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "reports"),
        ("--namespace", job.namespace or "x", r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "team"),
        ("--host-path", job.host_path, r"/[^\0:\n]+", HOST_REPORTS),
        *(("--env", name, r"[A-Za-z_]\w*", "NCCL_DEBUG=INFO") for name in job.env),
    ):
        if not re.fullmatch(form, value, re.ASCII):
            raise UsageError(
                f"{option} {value!r} cannot be used",
                why="The cluster would refuse it.",
                hint=f"For example: {option} {example}",
            )


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_sizes(job: K8sJob) -> None:
    sizes = {"--memory": job.memory, "--shm": job.shm, "--hugepages": job.hugepages}
    number = {option: size_bytes(option, text) for option, text in sizes.items() if text}
    if job.cpu and not re.fullmatch(r"\d+(\.\d+)?|\d+m", job.cpu):
        raise UsageError(
            f"--cpu {job.cpu} is not a number of cores", hint="For example: --cpu 96 or --cpu 500m"
        )
    if (job.hugepages or job.efa) and not job.memory:
        raise UsageError(
            f"{'--efa' if job.efa else '--hugepages'} needs --memory",
            why="Kubernetes refuses a pod that requests huge pages without memory or cores.",
            hint="For example: --memory 256Gi",
        )
    if number.get("--hugepages", 0) % (2 * 2**20):
        raise UsageError(
            f"--hugepages {job.hugepages} is not a whole number of pages",
            why="A page is 2Mi.",
            hint=f"For example: --hugepages {_EFA_HUGEPAGES}",
        )
    if job.memory and number["--shm"] > number["--memory"]:
        raise UsageError(
            f"--shm {job.shm} is more than --memory {job.memory}",
            why="/dev/shm counts as memory of the pod: the pod would be killed when it is full.",
            hint="Give more --memory or less --shm.",
        )


def size_bytes(option: str, text: str) -> int:
    """A quantity as Kubernetes writes it: 64Gi, 500M."""
    match = re.fullmatch(r"([1-9]\d*)([A-Za-z]*)", text)
    if not match or match[2] not in _UNITS:
        raise UsageError(
            f"{option} {text} is not a size",
            why="Sizes are written as in Kubernetes.",
            hint="For example: 64Gi",
        )
    return int(match[1]) * _UNITS[match[2]]


def parse_devices(option: str, value: object) -> int:
    """A number of devices of a worker; 0 is none."""
    text = str(value)
    if not text.isascii() or not text.isdecimal():
        raise UsageError(
            f"{option} {text} is not a number", why="It counts devices.", hint=f"For example: {option} 4"
        )
    return int(text)


def default_name(command: tuple[str, ...]) -> str:
    """The script's name and the time, so that two jobs of one script have different folders."""
    stem = re.sub(r"[^a-z0-9]+", "-", script_name(command).lower()).strip("-") if command else ""
    stem = stem if stem[:1].isalpha() else f"job-{stem}".rstrip("-")
    return f"{stem[:30].rstrip('-')}-{time.strftime('%m%d-%H%M%S')}"


def manifest(job: K8sJob) -> str:
    """The job as YAML; one document, or two for an indexed Job on several nodes."""
    check(job)
    if job.kind == "mpijob":
        return documents(_mpi_job(job))
    if job.kind == "pytorchjob":
        return documents(_pytorch_job(job))
    return documents(*([_service(job)] if job.nodes > 1 else []), _indexed_job(job))


def reader_pod(name: str, job: str, image: str, reports: str, node: str = "", namespace: str = "") -> str:
    """A pod that only mounts the reports, so that they can be copied after the job's pods have ended."""
    kind, _, where = reports.partition(":")
    spec: Map = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": 3600,
        "containers": [
            {
                "name": "reader",
                "image": image,
                "command": ["sleep", "3600"],
                "volumeMounts": [{"name": "reports", "mountPath": REPORTS, "readOnly": True}],
            }
        ],
        "volumes": [{"name": "reports", **_reports_volume(where if kind == "pvc" else "", where)}],
    }
    if node:  # bypasses the scheduler, and tolerates the taints that nodes with GPUs often have
        spec = {"nodeName": node, "tolerations": [{"operator": "Exists"}], **spec}
    labels: Map = {"app.kubernetes.io/created-by": "rankscope", "rankscope/reader-of": job}
    return documents(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **({"namespace": namespace} if namespace else {}), "labels": labels},
            "spec": spec,
        }
    )


def _mpi_job(job: K8sJob) -> Map:
    ranks = job.nodes * job.ppn
    exported = [word for name in ("PATH", "LD_LIBRARY_PATH", *_variables(job)) for word in ("-x", name)]
    mpirun = ["mpirun", "--allow-run-as-root", "-np", str(ranks), "--map-by", f"ppr:{job.ppn}:node"]
    command = [*mpirun, "--bind-to", "none", *exported, *_profiled(job)]
    launcher = _container(job, "launcher", command, on_gpu=False)
    # The worker only runs the ssh server of the image, which the operator starts.
    worker = _container(job, "worker", [], on_gpu=True)
    # Reports on the nodes' disks are found through the workers' pods, so these are kept; a claim needs no pod.
    policy = "Running" if job.pvc else "None"
    return _object(
        job,
        {
            "slotsPerWorker": job.ppn,
            "mpiImplementation": "OpenMPI",
            "runPolicy": {"cleanPodPolicy": policy, "backoffLimit": 0},
            "mpiReplicaSpecs": {
                "Launcher": _replicas(job, 1, launcher, shm=False),
                "Worker": _replicas(job, job.nodes, worker, shm=True),
            },
        },
    )


def _pytorch_job(job: K8sJob) -> Map:
    # The operator sets these variables in every pod.
    where = ["--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)"]
    container = _container(
        job, "pytorch", _torchrun(job, where), on_gpu=True
    )  # the operator requires this name
    replicas: Map = {"Master": _replicas(job, 1, container, shm=True)}
    if job.nodes > 1:
        replicas["Worker"] = _replicas(job, job.nodes - 1, container, shm=True)
    policy: Map = {"cleanPodPolicy": "None", "backoffLimit": 0}
    return _object(job, {"nprocPerNode": str(job.ppn), "runPolicy": policy, "pytorchReplicaSpecs": replicas})


def _indexed_job(job: K8sJob) -> Map:
    where = [
        "--node-rank=$(NODE_RANK)",
        f"--master-addr={job.name}-0.{job.name}",
        f"--master-port={_PORT}",
    ]
    container = _container(job, "worker", _torchrun(job, where), on_gpu=True)
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    numbered: Map = {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}}
    env = container.get("env", [])
    assert isinstance(env, list)
    container = {**container, "env": [numbered, *env]}
    template = _template(job, container, shm=True, more={"restartPolicy": "Never", "subdomain": job.name})
    return _object(
        job,
        {
            "completions": job.nodes,
            "parallelism": job.nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": template,
        },
    )


def _service(job: K8sJob) -> Map:
    """Host names for the pods of an indexed Job."""
    metadata: Map = {"name": job.name, **_namespace(job), "labels": _labels(job)}
    spec: Map = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # the ranks connect before any pod is ready
        "selector": {JOB_LABEL: job.name},
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _torchrun(job: K8sJob, where: list[str]) -> list[str]:
    if job.nodes == 1:
        start = ["torchrun", "--standalone", f"--nproc-per-node={job.ppn}"]
    else:
        start = ["torchrun", f"--nnodes={job.nodes}", f"--nproc-per-node={job.ppn}", *where]
    return [*start, "--no-python", *_profiled(job)]


def _profiled(job: K8sJob) -> list[str]:
    """`rankscope profile … COMMAND`; every $ doubled, because Kubernetes expands $(NAME) in commands."""
    words = ["rankscope", "profile", "-o", job.run_folder, *job.profile, "--", *job.command]
    return [word.replace("$", "$$") for word in words]


def _object(job: K8sJob, spec: Map) -> Map:
    version, kind, *_ = KINDS[job.kind]
    notes: Map = {
        REPORTS_NOTE: f"pvc:{job.pvc}" if job.pvc else f"hostPath:{job.host_path}",
        IMAGE_NOTE: job.image,
    }
    metadata: Map = {"name": job.name, **_namespace(job), "labels": _labels(job), "annotations": notes}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _namespace(job: K8sJob) -> Map:
    return {"namespace": job.namespace} if job.namespace else {}


def _labels(job: K8sJob) -> Map:
    return {
        "app.kubernetes.io/name": job.name,
        "app.kubernetes.io/created-by": "rankscope",
        JOB_LABEL: job.name,
    }


def _replicas(job: K8sJob, count: int, container: Map, shm: bool) -> Map:
    return {"replicas": count, "restartPolicy": "Never", "template": _template(job, container, shm, {})}


def _template(job: K8sJob, container: Map, shm: bool, more: Map) -> Map:
    volumes: list[Node] = [{"name": "reports", **_reports_volume(job.pvc, job.host_path)}]
    if shm:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.shm}})
    return {
        "metadata": {"labels": _labels(job)},
        "spec": {**more, "containers": [container], "volumes": volumes},
    }


def _reports_volume(pvc: str, host_path: str) -> Map:
    if pvc:
        return {"persistentVolumeClaim": {"claimName": pvc}}
    return {"hostPath": {"path": host_path, "type": "DirectoryOrCreate"}}


def _container(job: K8sJob, name: str, command: list[str], on_gpu: bool) -> Map:
    mounts: list[Node] = [{"name": "reports", "mountPath": REPORTS}]
    if on_gpu:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    container: Map = {"name": name, "image": job.image}
    if command:
        container["command"] = command
    variables: list[Node] = [{"name": key, "value": value} for key, value in _variables(job).items()]
    if variables:
        container["env"] = variables
    if on_gpu and job.counters:
        container["securityContext"] = {"capabilities": {"add": ["SYS_ADMIN"]}}
    if on_gpu and (resources := _resources(job)):
        container["resources"] = resources
    container["volumeMounts"] = mounts
    return container


def _variables(job: K8sJob) -> dict[str, str]:
    # Kubernetes expands $(NAME) in values too.
    efa = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"} if job.efa else {}
    return {**efa, **{name: value.replace("$", "$$") for name, value in job.env.items()}}


def _resources(job: K8sJob) -> Map:
    gpus = job.ppn if job.gpus is None else job.gpus
    hugepages = job.hugepages or (_EFA_HUGEPAGES if job.efa else "")
    amounts = {
        "cpu": job.cpu,
        "memory": job.memory,
        "hugepages-2Mi": hugepages,
        "nvidia.com/gpu": str(gpus) if gpus else "",
        "vpc.amazonaws.com/efa": str(job.efa) if job.efa else "",
    }
    limits: Map = {name: amount for name, amount in amounts.items() if amount}
    return {"requests": limits, "limits": limits} if limits else {}
