"""In front of a launcher: insert `rankscope profile` before the program in the launcher's own command line.

Each rank then decides for itself. The options are in the command line because every launcher passes that to all
nodes, which is not true of the environment. A launcher that is not known here is not an error: the plan is then
passed in the environment (see inapp's bootstrap).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.capture.job_name import is_python

Words = list[str]

# A placeholder for the argument that deepspeed adds before the script's own (--local_rank=N).
LOCAL_RANK_PLACE = "{local_rank}"
DEEPSPEED_ENTRY = "rankscope.capture.deepspeed"
_LAUNCHER_MODULES = ("torch.distributed.", "accelerate.commands", "deepspeed.launcher")


class Grammar(NamedTuple):
    """Which options of a launcher take no value, one or two; `program_index` guesses for the others."""

    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()
    # `-N2`: a short option with its value attached
    attached: bool = False
    # `a : b`: several programs in one command line
    colon: bool = False


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TORCHRUN = Grammar(
    flags=_set(
        "--standalone -m --module --no-python --no_python --virtual-local-rank --virtual_local_rank -h --help"
    ),
    values=_set(
        "--nnodes --nproc-per-node --nproc_per_node --rdzv-backend --rdzv_backend --rdzv-endpoint "
        "--rdzv_endpoint --rdzv-id --rdzv_id --rdzv-conf --rdzv_conf --max-restarts --max_restarts "
        "--monitor-interval --monitor_interval --start-method --start_method --role --log-dir --log_dir -r "
        "--redirects -t --tee --local-ranks-filter --local_ranks_filter --node-rank --node_rank "
        "--master-addr --master_addr --master-port --master_port --local-addr --local_addr --logs-specs "
        "--logs_specs --numa-binding --numa_binding --event-log-handler --event_log_handler "
        "--signals-to-handle --signals_to_handle"
    ),
)
# OpenMPI's, MPICH's and PALS's mpiexec in one table: an option that two of them have means the same in both.
_MPIEXEC = Grammar(
    flags=_set(
        "--oversubscribe -oversubscribe --nooversubscribe --allow-run-as-root --tag-output -tag-output "
        "--quiet -q --verbose -v --display-map --display-allocation --report-bindings -report-bindings "
        "--nolocal -nolocal --bynode -bynode --byslot -byslot -genvall -genvnone -envall -envnone -l "
        "-prepend-rank --line-buffer --label --use-hwthread-cpus --do-not-launch --timestamp-output -pernode "
        "--pernode --merge-stderr-to-stdout --noprefix -disable-auto-cleanup -print-all-exitcodes "
        "--exclusive --shared"
    ),
    values=_set(
        "-n -np --np -c -N --npernode -npernode --map-by -map-by --bind-to -bind-to --rank-by -rank-by -H "
        "-host --host -hosts --hosts --hostfile -hostfile -machinefile --machinefile -f -x -wdir --wdir -wd "
        "-ppn --ppn -perhost -launcher -bootstrap -iface -genvlist -envlist --cpu-bind --mem-bind --depth -d "
        "--env --envlist --rankfile -rf --prefix --path --output-filename --timeout --app --personality "
        "--tune -am -bootstrap-exec -rmk -configfile -usize -outfile-pattern -errfile-pattern --rlimits "
        "--procs --list"
    ),
    pairs=_set("--mca -mca --gmca -gmca --omca --prtemca --pmixmca -genv -env"),
    colon=True,
)
_SRUN = Grammar(
    flags=_set(
        "-l --label -u --unbuffered -O --overcommit -s --oversubscribe -E --preserve-env -Q --quiet -v -vv "
        "-vvv --verbose -Z --no-allocate -H --hold -X --disable-status -b --exclusive --overlap --pty "
        "--exact --contiguous --spread-job --use-min-nodes --reboot --no-kill -k --mincpus --test-only "
        "--multi-prog --whole --interactive"
    ),
    values=_set(
        "-n --ntasks -N --nodes -c --cpus-per-task -p --partition -t --time -w --nodelist -x --exclude -J "
        "--job-name -A --account -q --qos -o --output -e --error -i --input -D --chdir -m --distribution -G "
        "--gpus --gres --gpus-per-node --gpus-per-task --ntasks-per-node --ntasks-per-gpu --mpi --export "
        "--cpu-bind --mem-bind --mem --mem-per-cpu -C --constraint -W --wait -K --kill-on-bad-exit --jobid "
        "-r --relative --threads-per-core --gpu-bind --network --prolog --epilog --signal --container-image "
        "--container-mounts -L --licenses -d --dependency -B --extra-node-info -S --core-spec -T --threads "
        "--slurmd-debug --bcast --reservation"
    ),
    attached=True,
    colon=True,
)
_DEEPSPEED = Grammar(
    flags=_set(
        "--no_python --module --no_local_rank --no_ssh --no_ssh_check --save_pid --enable_each_rank_log "
        "--force_multi --elastic_training --bind_cores_to_rank -h --help"
    ),
    values=_set(
        "-H --hostfile -i --include -e --exclude --num_nodes --num_gpus --master_port --master_addr "
        "--launcher --launcher_args --autotuning --ssh_port --node_rank --bind_core_list --min_elastic_nodes "
        "--max_elastic_nodes --venv_script"
    ),
)
_ACCELERATE = Grammar(
    flags=_set(
        "--cpu --multi_gpu --tpu --ipex --use_mps_device --use_deepspeed --use_fsdp --use_megatron_lm "
        "--use_xpu -m --module --no_python -q --quiet --same_network --debug --enable_cpu_affinity "
        "--rdzv_conf_none -h --help --use_parallelism_config --use_fp8"
    ),
)


def rewrite(command: Sequence[str], inserted: Sequence[str], env: Mapping[str, str]) -> Words | None:
    """The launcher's command with ``inserted`` before each program; None when it is not a known launcher."""
    words = list(command)
    name = Path(words[0]).name
    if name == "torchrun":
        return _torchrun(words[:1], words[1:], inserted, env)
    if is_python(name) and words[1:3] == ["-m", "torch.distributed.run"]:
        return _torchrun(words[:3], words[3:], inserted, env)
    if re.fullmatch(r"(mpiexec|mpirun|orterun)([._].*)?", name):
        return _programs(words[:1], words[1:], inserted, _MPIEXEC)
    if name == "srun":
        return _programs(words[:1], words[1:], inserted, _SRUN)
    if name == "deepspeed":
        return _deepspeed(words[:1], words[1:], inserted)
    if name == "accelerate" and words[1:2] == ["launch"]:
        return _accelerate(words[:2], words[2:], inserted)
    if is_python(name) and words[1:3] == ["-m", "accelerate.commands.launch"]:
        return _accelerate(words[:3], words[3:], inserted)
    return None


def is_launcher(words: Sequence[str]) -> bool:
    """Whether a running process is a launcher's own Python (the torchrun agent) and not a rank."""
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m":
            return rest[:1] != [] and rest[0].startswith(_LAUNCHER_MODULES)
        if word in ("-W", "-X"):
            rest = rest[1:]
        elif not word.startswith("-"):
            return Path(word).name in ("torchrun", "deepspeed", "accelerate", "accelerate-launch")
    return False


def _torchrun(head: Words, rest: Words, inserted: Sequence[str], env: Mapping[str, str]) -> Words | None:
    place = program_index(rest, _TORCHRUN)
    if place is None or {"--run-path", "--run_path"} & set(rest[:place]):
        return None
    options, program = rest[:place], rest[place:]
    if {"--no-python", "--no_python"} & set(options):
        return [*head, *options, *inserted, *program]
    python = env.get("PYTHON_EXEC") or (head[0] if len(head) > 1 else interpreter_of(head[0]))
    if python is None:
        return None
    as_module = ["-m"] if {"-m", "--module"} & set(options) else []
    options = [word for word in options if word not in ("-m", "--module")]
    # -u because torchrun gives it to the scripts it starts itself
    return [*head, *options, "--no-python", *inserted, python, "-u", *as_module, *program]


def _programs(head: Words, rest: Words, inserted: Sequence[str], grammar: Grammar) -> Words | None:
    place = program_index(rest, grammar)
    if place is None:
        return None
    options, program = rest[:place], rest[place:]
    if grammar.colon and ":" in program:
        colon = program.index(":")
        others = _programs([], program[colon + 1 :], inserted, grammar)
        if others is None:
            return None
        program = [*program[:colon], ":", *others]
    return [*head, *options, *inserted, *program]


def _deepspeed(head: Words, rest: Words, inserted: Sequence[str]) -> Words | None:
    """deepspeed adds --local_rank=N right after what it starts; rankscope.capture.deepspeed moves it to the script."""
    place = program_index(rest, _DEEPSPEED)
    if place is None:
        return None
    options, program = rest[:place], rest[place:]
    start: Words = []
    if "--no_python" not in options:
        python = interpreter_of(head[0])
        if python is None:
            return None
        start = [python, "-u", *(["-m"] if "--module" in options else [])]
    options = [word for word in options if word not in ("--no_python", "--module")]
    ours = list(inserted[3:])  # without `python -m rankscope`: deepspeed starts the module itself
    return [
        *head,
        *options,
        "--module",
        DEEPSPEED_ENTRY,
        *ours,
        *start,
        program[0],
        LOCAL_RANK_PLACE,
        *program[1:],
    ]


def _accelerate(head: Words, rest: Words, inserted: Sequence[str]) -> Words | None:
    place = program_index(rest, _ACCELERATE)
    if place is None:
        return None
    options, program = rest[:place], rest[place:]
    if "--no_python" in options:
        return [*head, *options, *inserted, *program]
    python = head[0] if len(head) > 2 else interpreter_of(head[0])
    if python is None:
        return None
    as_module = ["-m"] if {"-m", "--module"} & set(options) else []
    options = [word for word in options if word not in ("-m", "--module")]
    return [*head, *options, "--no_python", *inserted, python, *as_module, *program]


def program_index(
    words: Sequence[str], grammar: Grammar, which: Callable[[str], str | None] = shutil.which
) -> int | None:
    """The index of the program among a launcher's words.

    An option that is not in the table takes a value unless another option or an existing program follows it.
    """
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return index + 1 if index + 1 < len(words) else None
        if not word.startswith("-") or word == "-":
            return index
        following = words[index + 1] if index + 1 < len(words) else ""
        if "=" in word or word in grammar.flags or (grammar.attached and re.match(r"-[A-Za-z][^-]", word)):
            index += 1
        elif word in grammar.pairs:
            index += 3
        elif word in grammar.values:
            index += 2
        elif following.startswith("-") or (not following.isdecimal() and which(following)):
            index += 1
        else:
            index += 2
    return None


def interpreter_of(script: str) -> str | None:
    """The Python that a console script such as torchrun runs in, from its first lines."""
    path = shutil.which(script)
    if path is None:
        return None
    try:
        head = Path(path).read_bytes()[:1024].decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    words = head[0][2:].split() if head and head[0].startswith("#!") else []
    if words and Path(words[0]).name == "env":
        return shutil.which(words[-1])
    if words and is_python(Path(words[0]).name):
        return words[0]
    # pip writes '''exec' /a/long/path/python "$0" "$@" where the path is too long for a #! line
    match = re.match(r"'''exec' (\S+)", head[1]) if len(head) > 1 else None
    return match[1].strip('"') if match else None


def bootstrap_environment(env: Mapping[str, str], plan_json: str, plan_variable: str) -> dict[str, str]:
    """The environment in which every Python process checks whether it is a selected rank.

    `start_capture.clean_environment` takes it back, exactly, in each process that needs it no more.
    """
    bootstrap = str(Path(__file__).resolve().parent.parent / "inapp" / "bootstrap")
    # An empty one becomes a second bootstrap: Python would take an empty part for the current folder.
    path = env.get("PYTHONPATH")
    path = bootstrap if path == "" else path
    return {
        **env,
        plan_variable: plan_json,
        "PYTHONPATH": f"{bootstrap}{os.pathsep}{path}" if path else bootstrap,
    }


def command_text(command: Sequence[str], env: Mapping[str, str]) -> str:
    """A command line for a shell, with the variables that differ from ours in front."""
    changed = [f"{name}={shlex.quote(value)}" for name, value in env.items() if os.environ.get(name) != value]
    return " ".join([*changed, shlex.join(command)])
