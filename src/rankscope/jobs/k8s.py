"""Kubernetes manifests with the profiler in them: MPIJob, PyTorchJob, or an indexed Job with its Service.

Only builds the text; jobs/kubectl.py calls the cluster.
"""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from rankscope.capture.job_name import script_name
from rankscope.errors import UsageError
from rankscope.jobs.spec import check_forms

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

# Characters that YAML does not allow unescaped, or takes for a line break.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


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

_LABELS = """\
app.kubernetes.io/name: {name}
app.kubernetes.io/created-by: rankscope
rankscope/job: {name}
"""
_HEAD = """\
apiVersion: {version}
kind: {kind}
metadata:
  name: {name}
  {namespace}
  labels:
    {labels}
  annotations:
    rankscope/reports: {reports}
    rankscope/image: {image}
"""
_MPI_JOB = """\
spec:
  slotsPerWorker: {ppn}
  mpiImplementation: OpenMPI
  runPolicy:
    cleanPodPolicy: {policy}
    backoffLimit: 0
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: Never
      template:
        {launcher}
    Worker:
      replicas: {nodes}
      restartPolicy: Never
      template:
        {worker}
"""
_PYTORCH_JOB = """\
spec:
  nprocPerNode: {ranks}
  runPolicy:
    cleanPodPolicy: None
    backoffLimit: 0
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: Never
      template:
        {pod}
    {worker}
"""
_PYTORCH_WORKER = """\
Worker:
  replicas: {count}
  restartPolicy: Never
  template:
    {pod}
"""
_INDEXED_JOB = """\
spec:
  completions: {nodes}
  parallelism: {nodes}
  completionMode: Indexed
  backoffLimit: 0
  template:
    {pod}
"""
# Host names for the pods of an indexed Job; the ranks connect before any pod is ready.
_SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: {name}
  {namespace}
  labels:
    {labels}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    rankscope/job: {name}
"""
_POD = """\
metadata:
  labels:
    {labels}
spec:
  {more}
  containers:
    - name: {name}
      image: {image}
      {command}
      env:
        {variables}
      {privileges}
      {resources}
      volumeMounts:
        - name: reports
          mountPath: /reports
        {shm_mount}
  volumes:
    - name: reports
      {volume}
    {shm}
"""
_NODE_RANK = """\
- name: NODE_RANK
  valueFrom:
    fieldRef:
      fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
"""
_COUNTERS = """\
securityContext:
  capabilities:
    add:
      - SYS_ADMIN
"""
_RESOURCES = """\
resources:
  requests:
    {amounts}
  limits:
    {amounts}
"""
_SHM = """\
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {size}
"""
_READER_POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  {namespace}
  labels:
    app.kubernetes.io/created-by: rankscope
    rankscope/reader-of: {job}
spec:
  {on_node}
  restartPolicy: Never
  activeDeadlineSeconds: 3600
  containers:
    - name: reader
      image: {image}
      command: [sleep, "3600"]
      volumeMounts:
        - name: reports
          mountPath: /reports
          readOnly: true
  volumes:
    - name: reports
      {volume}
"""


KIND_OPTION = f"--kind {{{','.join(KINDS)}}}  the kind of job (default: mpijob)\n"
CLUSTER_OPTIONS = """\
--namespace NAME  (default: kubectl's)
--context NAME  which cluster (default: kubectl's)
"""


@dataclass(frozen=True)
class K8sJob:
    """The command, the resources, and the profiler's options."""

    OPTIONS: ClassVar = {
        "the job": f"""\
--image NAME  has rankscope and the training code in it
{KIND_OPTION}\
--nodes N  workers, one a node
--ppn N  ranks on each, and its GPUs
--launcher {{mpirun,torchrun}}  what starts a node's ranks (default: mpirun in an MPIJob, else torchrun)
--name NAME  the job's name (default: the script's, and the time)
{CLUSTER_OPTIONS}\
--env K=V ...  a variable of every rank; may be repeated
""",
        "resources of a worker": """\
--gpus N  GPUs, when not one a rank; 0 for none
--cpu N  cores
--memory SIZE  such as 256Gi
--shm SIZE  /dev/shm
--efa N  AWS's network cards; needs --memory
--hugepages SIZE  2 MiB pages (default: 5120Mi with --efa)
--pvc NAME  the claim for the reports; all nodes write to it
--host-path DIR  without --pvc: a folder of each node
""",
    }
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    job_kind: str = "mpijob"
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
        return self.launcher or ("mpirun" if self.job_kind == "mpijob" else "torchrun")

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
    least = {
        "--nodes": (job.nodes, 1),
        "--ppn": (job.ppn, 1),
        "--efa": (job.efa, 0),
        "--gpus": (job.gpus or 0, 0),
    }
    for option, (number, smallest) in least.items():
        if number < smallest:
            raise UsageError(
                f"{option} {number} is too small", why=f"It is {smallest} or more.", hint=f"Give {option} N."
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
            why=f"{KINDS[job.job_kind].name} and rankscope start the ranks on every node themselves.",
            hint="Give the command of one rank: -- python train.py …",
        )
    if job.starts_ranks == "mpirun" and job.job_kind != "mpijob":
        raise UsageError(
            f"--launcher mpirun is not for a {KINDS[job.job_kind].name}",
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
    check_forms(
        "The cluster would refuse it.",
        ("--image", job.image, r"\w[\w.:/@-]*", "registry.example.org/team/train:1"),
        ("--pvc", job.pvc or None, r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "reports"),
        ("--namespace", job.namespace or None, r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "team"),
        ("--host-path", job.host_path, r"/[^\0:\n]+", HOST_REPORTS),
        ("--cpu", job.cpu or None, r"\d+(\.\d+)?|\d+m", "96 or --cpu 500m"),
        *(("--env", name, r"[A-Za-z_]\w*", "NCCL_DEBUG=INFO") for name in job.env),
    )
    sizes = {"--memory": job.memory, "--shm": job.shm, "--hugepages": job.hugepages}
    amounts = {option: _bytes(option, text) for option, text in sizes.items() if text}
    if (job.hugepages or job.efa) and not job.memory:
        raise UsageError(
            f"{'--efa' if job.efa else '--hugepages'} needs --memory",
            why="Kubernetes refuses a pod that requests huge pages without memory or cores.",
            hint="For example: --memory 256Gi",
        )
    if amounts.get("--hugepages", 0) % (2 * 2**20):
        raise UsageError(
            f"--hugepages {job.hugepages} is not a whole number of pages",
            why="A page is 2Mi.",
            hint=f"For example: --hugepages {_EFA_HUGEPAGES}",
        )
    if job.memory and amounts["--shm"] > amounts["--memory"]:
        raise UsageError(
            f"--shm {job.shm} is more than --memory {job.memory}",
            why="/dev/shm counts as memory of the pod: the pod would be killed when it is full.",
            hint="Give more --memory or less --shm.",
        )


def _bytes(option: str, text: str) -> int:
    """A quantity as Kubernetes writes it: 64Gi, 500M."""
    check_forms(
        "Sizes are written as in Kubernetes.", (option, text, rf"[1-9]\d*({'|'.join(_UNITS)})", "64Gi")
    )
    digits = text.rstrip("".join(_UNITS))
    return int(digits) * _UNITS[text[len(digits) :]]


def default_name(command: tuple[str, ...]) -> str:
    """The script's name and the time, so that two jobs of one script have different folders."""
    stem = re.sub(r"[^a-z0-9]+", "-", script_name(command).lower()).strip("-") if command else ""
    stem = stem if stem[:1].isalpha() else f"job-{stem}".rstrip("-")
    return f"{stem[:30].rstrip('-')}-{time.strftime('%m%d-%H%M%S')}"


def manifest(job: K8sJob) -> str:
    """The job as YAML; one document, or two for an indexed Job on several nodes."""
    check(job)
    version, kind, _ = KINDS[job.job_kind]
    common: dict[str, str | int] = {
        "version": version,
        "kind": kind,
        "name": job.name,
        "nodes": job.nodes,
        "ppn": job.ppn,
    }
    common |= {"namespace": _namespace(job.namespace), "labels": _fill(_LABELS, name=job.name)}
    common |= {"image": job.image, "reports": f"pvc:{job.pvc}" if job.pvc else f"hostPath:{job.host_path}"}
    head = _fill(_HEAD, **common)
    if job.job_kind == "mpijob":
        # Reports on the nodes' disks are found through the workers' pods, so these are kept; a claim needs no pod.
        common["policy"] = "Running" if job.pvc else "None"
        # The worker only runs the ssh server of the image, which the operator starts.
        launcher, worker = (
            _pod(job, "launcher", _mpirun(job), on_gpu=False),
            _pod(job, "worker", [], on_gpu=True),
        )
        return head + _fill(_MPI_JOB, launcher=launcher, worker=worker, **common)
    if job.job_kind == "pytorchjob":
        # The operator sets these variables in every pod. RANK is the pod's number there, not a rank.
        where = ["--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)"]
        pod = _pod(job, "pytorch", _in_every_pod(job, "$(RANK)", where), on_gpu=True)  # the name is required
        worker = _fill(_PYTORCH_WORKER, count=job.nodes - 1, pod=pod) if job.nodes > 1 else ""
        return head + _fill(_PYTORCH_JOB, ranks=str(job.ppn), pod=pod, worker=worker)
    where = [f"--master-addr={job.name}-0.{job.name}", f"--master-port={_PORT}"]
    command = _in_every_pod(job, "$(NODE_RANK)", where)
    more = _fill("restartPolicy: Never\nsubdomain: {name}\n", name=job.name)
    pod = _pod(job, "worker", command, on_gpu=True, more=more, variables=_NODE_RANK)
    service = _fill(_SERVICE, **common) + "---\n" if job.nodes > 1 else ""
    return service + head + _fill(_INDEXED_JOB, nodes=job.nodes, pod=pod)


def reader_pod(name: str, job: str, image: str, reports: str, node: str = "", namespace: str = "") -> str:
    """A pod that only mounts the reports, so that they can be copied after the job's pods have ended."""
    kind, _, where = reports.partition(":")
    # Naming the node bypasses the scheduler; nodes with GPUs often have taints.
    on_node = _fill("nodeName: {node}\ntolerations:\n  - operator: Exists\n", node=node) if node else ""
    volume = _reports_volume(where if kind == "pvc" else "", where)
    more: dict[str, str | int] = {"namespace": _namespace(namespace), "on_node": on_node, "volume": volume}
    return _fill(_READER_POD, name=name, job=job, image=image, **more)


def _mpirun(job: K8sJob) -> list[str]:
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
    return [*_escaped(["sh", "-c", _START_OF_MPIRUN]), "sh", *mpirun, *command]


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


def _namespace(name: str) -> str:
    return _fill("namespace: {name}\n", name=name) if name else ""


def _pod(
    job: K8sJob, name: str, command: list[str], *, on_gpu: bool, more: str = "", variables: str = ""
) -> str:
    for key, value in _variables(job).items():
        variables += _fill("- name: {key}\n  value: {value}\n", key=key, value=value)
    amounts = "".join(_fill(f"{key}: {{amount}}\n", amount=amount) for key, amount in _resources(job).items())
    return _fill(
        _POD,
        labels=_fill(_LABELS, name=job.name),
        more=more,
        name=name,
        image=job.image,
        command=_list("command", command) if command else "",
        variables=variables,
        privileges=_COUNTERS if on_gpu and job.counters else "",
        resources=_fill(_RESOURCES, amounts=amounts) if on_gpu and amounts else "",
        shm_mount="- name: shm\n  mountPath: /dev/shm\n" if on_gpu else "",
        volume=_reports_volume(job.pvc, job.host_path),
        shm=_fill(_SHM, size=job.shm) if on_gpu else "",
    )


def _reports_volume(pvc: str, host_path: str) -> str:
    if pvc:
        return _fill("persistentVolumeClaim:\n  claimName: {pvc}\n", pvc=pvc)
    return _fill("hostPath:\n  path: {path}\n  type: DirectoryOrCreate\n", path=host_path)


def _variables(job: K8sJob) -> dict[str, str]:
    # Kubernetes expands $(NAME) in values too.
    efa = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"} if job.efa else {}
    given = {name: value.replace("$", "$$") for name, value in job.env.items()}
    return {"PYTHONUNBUFFERED": "1", **efa, **given}  # so that output is not lost when a rank is killed


def _resources(job: K8sJob) -> dict[str, str]:
    gpus = job.ppn if job.gpus is None else job.gpus
    amounts = {
        "cpu": job.cpu,
        "memory": job.memory,
        "hugepages-2Mi": job.hugepages or (_EFA_HUGEPAGES if job.efa else ""),
        "nvidia.com/gpu": str(gpus or ""),
        "vpc.amazonaws.com/efa": str(job.efa or ""),
    }
    return {name: amount for name, amount in amounts.items() if amount}


def _fill(template: str, **values: str | int) -> str:
    """A line that is only {name} becomes that text, indented alike, or goes where it is empty.

    Elsewhere {name} becomes a number, or a text in quotes, which YAML reads as JSON does.
    """
    lines = []
    for line in template.splitlines(keepends=True):
        if block := re.fullmatch(r"( *)\{(\w+)\}\n", line):
            lines.append(textwrap.indent(str(values[block[2]]), block[1]))
        else:
            lines.append(re.sub(r"\{(\w+)\}", lambda match: _scalar(values[match[1]]), line))
    return "".join(lines)


def _list(key: str, words: Sequence[str]) -> str:
    items = (
        f"  - |\n{textwrap.indent(word, '    ')}" if word in _SCRIPTS else f"  - {_scalar(word)}\n"
        for word in words
    )
    return f"{key}:\n{''.join(items)}"


def _scalar(value: str | int) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_SCRIPTS = _escaped([_START_OF_MPIRUN, _START_OF_TORCHRUN])
