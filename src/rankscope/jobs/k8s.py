"""Kubernetes manifests with the profiler in them: MPIJob, PyTorchJob, or an indexed Job with its Service.

Only builds the text; jobs/kubectl.py calls the cluster.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from rankscope.capture.job_name import script_name
from rankscope.errors import UsageError

Node: TypeAlias = "str | int | bool | Sequence[Node] | Mapping[str, Node]"
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
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,46}[a-z0-9])?")
_LAUNCHERS = ("torchrun", "mpirun", "mpiexec", "srun", "orterun")
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}

_PLAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*(:[A-Za-z0-9_./@-]+)*")
_RESERVED = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
# Characters that YAML does not allow unescaped, or takes for a line break.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

# Several lines with one line break at the end: a script, which reads better as it is.
_BLOCK = re.compile(r"[^\s\x00-\x1f][^\x00-\x09\x0b-\x1f]*\n[^\x00-\x09\x0b-\x1f]*[^\x00-\x1f]\n")


class Operator(NamedTuple):
    """What must be installed in the cluster for a kind of job."""

    title: str
    resource: str
    """The definition that shows that it is installed."""
    apply: tuple[str, ...]
    """kubectl's words that install it, as its project documents them."""
    namespace: str
    deployment: str


class Kind(NamedTuple):
    version: str
    name: str
    operator: Operator | None = None


_MPI_OPERATOR = Operator(
    "the MPI operator v0.8.2",
    "mpijobs.kubeflow.org",
    (
        *("apply", "--server-side", "-f"),
        "https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.8.2/deploy/v2beta1/mpi-operator.yaml",
    ),
    "mpi-operator",
    "mpi-operator",
)
_TRAINING_OPERATOR = Operator(
    "Kubeflow's training operator v1.9.0",
    "pytorchjobs.kubeflow.org",
    (
        *("apply", "--server-side", "-k"),
        "github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.0",
    ),
    "kubeflow",
    "training-operator",
)
KINDS = {
    "mpijob": Kind("kubeflow.org/v2beta1", "MPIJob", _MPI_OPERATOR),
    "pytorchjob": Kind("kubeflow.org/v1", "PyTorchJob", _TRAINING_OPERATOR),
    "job": Kind("batch/v1", "Job"),
}

# Runs in the launcher's pod of an MPIJob, before mpirun. The hostfile is the operator's; its first line is worker 0.
# mpirun gives up at the first host that it cannot reach, and workers may still be pulling their image.
_START_OF_MPIRUN = """\
hosts=${OMPI_MCA_orte_default_hostfile:-/etc/mpi/hostfile}
while read -r host _; do
  tries=0
  until ssh -o ConnectTimeout=5 "$host" true </dev/null 2>/tmp/ssh-error; do
    tries=$((tries + 1))
    case $tries-$(cat /tmp/ssh-error) in
      600-* | *"verification failed"* | *"ermission denied"* | *"ssh: not found"*)
        echo "rankscope: cannot reach $host over ssh: $(cat /tmp/ssh-error)" >&2
        exit 1
        ;;
      *0-*) echo "rankscope: waiting for $host" >&2 ;;
    esac
    sleep 2
  done
done <"$hosts"
export MASTER_ADDR="${MASTER_ADDR:-$(head -n 1 "$hosts" | cut -d " " -f 1)}"
export MASTER_PORT="${MASTER_PORT:-29500}"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" # mpirun warns about a variable that is not set
exec "$@"
"""
# On every node, before torchrun: its options --node-rank, --master-addr and --master-port, as variables.
_START_OF_TORCHRUN = """\
export PET_NODE_RANK="$OMPI_COMM_WORLD_RANK"
export PET_MASTER_ADDR="$MASTER_ADDR"
export PET_MASTER_PORT="$MASTER_PORT"
exec "$@"
"""


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
    profiled: bool = True
    """False: the command runs as it is."""
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
    launcher: str = ""
    """What starts the ranks of a node: mpirun (only in an MPIJob) or torchrun; the kind's own when empty."""
    per_node: bool = False
    """The profiler runs around torchrun, one report a node, instead of in each rank."""

    @property
    def starts_ranks(self) -> str:
        return self.launcher or ("mpirun" if self.kind == "mpijob" else "torchrun")

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
            why=f"{KINDS[job.kind].name} and rankscope start the ranks on every node themselves.",
            hint="Give the command of one rank: -- python train.py …",
        )
    if job.starts_ranks == "mpirun" and job.kind != "mpijob":
        raise UsageError(
            f"--launcher mpirun is not for a {KINDS[job.kind].name}",
            why="Only the MPI operator gives mpirun its hosts.",
            hint="Leave it out, or use --kind mpijob.",
        )
    if job.per_node and job.starts_ranks == "mpirun":
        raise UsageError(
            "--per-node is for torchrun",
            why="It makes one report around the process that starts the ranks of a node; mpirun starts each rank.",
            hint="Add --launcher torchrun, or choose ranks: --ranks local:0",
        )
    if any(_NOT_TEXT.search(word) for word in job.command):
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
    per_node = job.ppn if job.starts_ranks == "mpirun" else 1
    # sshd does not pass the variables of the pods on, so mpirun does.
    names = ["PATH", "LD_LIBRARY_PATH", "MASTER_ADDR", "MASTER_PORT", *_variables(job)]
    command = _profiled(job, list(job.command))
    if job.starts_ranks == "torchrun":
        on_node = [*_escaped(["sh", "-c", _START_OF_TORCHRUN]), "sh"]
        command = [*on_node, *_with_torchrun(job, [f"--nnodes={job.nodes}"], [])]
    mpirun = ["mpirun", "--allow-run-as-root", "-np", str(job.nodes * per_node)]
    mpirun += ["--map-by", f"ppr:{per_node}:node", "--bind-to", "none"]
    mpirun += [word for name in dict.fromkeys(names) for word in ("-x", name)]
    start = [*_escaped(["sh", "-c", _START_OF_MPIRUN]), "sh"]
    launcher = _container(job, "launcher", [*start, *mpirun, *command], on_gpu=False)
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
    # The operator sets these variables in every pod. RANK is the pod's number there, not a rank.
    where = ["--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)"]
    command = _in_every_pod(job, "$(RANK)", where)
    container = _container(job, "pytorch", command, on_gpu=True)  # the operator requires this name
    replicas: Map = {"Master": _replicas(job, 1, container, shm=True)}
    if job.nodes > 1:
        replicas["Worker"] = _replicas(job, job.nodes - 1, container, shm=True)
    policy: Map = {"cleanPodPolicy": "None", "backoffLimit": 0}
    return _object(job, {"nprocPerNode": str(job.ppn), "runPolicy": policy, "pytorchReplicaSpecs": replicas})


def _indexed_job(job: K8sJob) -> Map:
    where = [f"--master-addr={job.name}-0.{job.name}", f"--master-port={_PORT}"]
    container = _container(job, "worker", _in_every_pod(job, "$(NODE_RANK)", where), on_gpu=True)
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


def _in_every_pod(job: K8sJob, number: str, where: list[str]) -> list[str]:
    """torchrun as the command of every pod; ``number`` is the variable with the pod's number."""
    if job.nodes == 1:
        return _with_torchrun(job, ["--standalone"], [])
    # Before torchrun no launcher has said which of the nodes this is.
    node = ["--rank", number, "--local-rank", "0", "--node-rank", number, "--world-size", str(job.nodes)]
    return _with_torchrun(job, [f"--nnodes={job.nodes}", f"--node-rank={number}", *where], node)


def _with_torchrun(job: K8sJob, options: list[str], node: list[str]) -> list[str]:
    """The profiler in every rank, or around torchrun, where ``node`` tells it which one."""
    torchrun = ["torchrun", *options, f"--nproc-per-node={job.ppn}", "--no-python"]
    if job.per_node:
        return [*_profiled(job, [], node), *torchrun, *_escaped(job.command)]
    return [*torchrun, *_profiled(job, list(job.command))]


def _profiled(job: K8sJob, command: list[str], node: Sequence[str] = ()) -> list[str]:
    if not job.profiled:
        return _escaped(command)
    words = _escaped(["rankscope", "profile", "-o", job.run_folder, *job.profile])
    return [*words, *node, "--", *_escaped(command)]


def _escaped(words: Sequence[str]) -> list[str]:
    """Every $ doubled, because Kubernetes expands $(NAME) in commands."""
    return [word.replace("$", "$$") for word in words]


def _object(job: K8sJob, spec: Map) -> Map:
    version, kind, _ = KINDS[job.kind]
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
    given = {name: value.replace("$", "$$") for name, value in job.env.items()}
    return {"PYTHONUNBUFFERED": "1", **efa, **given}  # so that output is not lost when a rank is killed


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


def documents(*nodes: Node) -> str:
    """YAML, as far as a manifest needs it, of several documents in one file.

    Text that YAML could read as something else (yes, 1e3, 12:30, a leading *) is quoted, as is any text with special
    characters. A property test checks that PyYAML reads back what is written here.
    """
    return "---\n".join("\n".join(_yaml_lines(node)) + "\n" for node in nodes)


def _yaml_lines(node: Node) -> list[str]:
    """The lines of a map or list, not indented."""
    if isinstance(node, Mapping):
        return [
            line
            for key, value in node.items()
            for line in _entry(f"{_yaml_text(key)}:", value, in_list=False)
        ]
    assert isinstance(node, Sequence) and not isinstance(node, str)
    return [line for value in node for line in _entry("-", value, in_list=True)]


def _entry(head: str, value: Node, in_list: bool) -> list[str]:
    if isinstance(value, str) and _BLOCK.fullmatch(value) and not _UNPRINTABLE.search(value):
        return [f"{head} |", *(f"  {line}" if line else "" for line in value[:-1].split("\n"))]
    if isinstance(value, str | int) or not value:
        return [f"{head} {_scalar(value)}"]
    inner = _yaml_lines(value)
    if in_list:  # the first line follows the dash
        return [f"- {inner[0]}", *(f"  {line}" for line in inner[1:])]
    return [head, *(f"  {line}" for line in inner)]


def _scalar(value: Node) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _yaml_text(value)
    return "{}" if isinstance(value, Mapping) else "[]"


def _yaml_text(text: str) -> str:
    if _PLAIN_TEXT.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
