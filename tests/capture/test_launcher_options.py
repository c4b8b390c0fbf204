"""Where the program begins in a launcher's command line, and the tables of options against the launchers themselves."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankscope.capture.launcher_command import read_options, rewrite
from rankscope.capture.launcher_options import (
    ACCELERATE,
    DEEPSPEED,
    HYDRA,
    MPI,
    OPENMPI,
    SRUN,
    TORCHRUN,
    Grammar,
    Takes,
)

# A bar stands before each program.
PROGRAM_LINES = """
srun | python t.py
srun -n4 | python t.py
srun -n 4 | python t.py
srun -n=4 | python t.py
srun --ntasks=4 | python t.py
srun --ntasks 4 | python t.py
srun --ntas 4 | python t.py
srun --ntasks-per-n 4 | python t.py
srun -N2 -n4 --ntasks-per-node=2 | python t.py
srun -lN2 | python t.py
srun -lN 2 | python t.py
srun -luN2 -n 4 | python t.py
srun -lu | python t.py
srun -vvv | python t.py
srun -vvn4 | python t.py
srun -K | python t.py
srun -K0 | python t.py
srun -K1 -n2 | python t.py
srun -lK | python t.py
srun -lK1 | python t.py
srun -I | python t.py
srun -I60 | python t.py
srun -k | python t.py
srun -kn2 | python t.py
srun --kill-on-bad-exit | python t.py
srun --kill-on-bad-exit=1 | python t.py
srun --kill-on | python t.py
srun --kill=1 | python t.py
srun --mincpus 4 | python t.py
srun --mincpus=4 | python t.py
srun --comment test | python t.py
srun --comment=test | python t.py
srun --comment python -n 2 | python t.py
srun --task-prolog ./p.sh | python t.py
srun --task-epilog=./p.sh | python t.py
srun --prolog p.sh --epilog e.sh | python t.py
srun -b now+1hour | python t.py
srun --begin 16:00 | python t.py
srun -J run -A acct -p debug -t 10 -q high | python t.py
srun -Jrun -Aacct -pdebug -t10 | python t.py
srun -w n1,n2 -x n3 | python t.py
srun -o out.%t -e err.%t -i none | python t.py
srun -D /tmp | python t.py
srun --chdir /tmp | python t.py
srun -c 8 --cpu-bind=cores | python t.py
srun --cpu-bind cores --mem-bind local | python t.py
srun --cpu_bind cores | python t.py
srun --gpus-per-task 1 --gpu-bind closest | python t.py
srun -G 4 --gpus-per-node=4 --gres gpu:4 | python t.py
srun --mpi pmi2 | python t.py
srun --mpi=pmix | python t.py
srun --export ALL,A=1 | python t.py
srun --export=ALL | python t.py
srun --exclusive --exact --overlap | python t.py
srun --exclusive=user | python t.py
srun --nice | python t.py
srun --nice=100 | python t.py
srun --propagate | python t.py
srun --propagate=STACK | python t.py
srun --compress --send-libs | python t.py
srun --pty --unbuffered --label | python t.py
srun --immediate --no-kill --resv-ports --x11 | python t.py
srun --network single_node_vni --hint nomultithread | python t.py
srun --tres-per-task cpu:4 --oom-kill-step | python t.py
srun --het-group 0 | python t.py
srun --signal USR1@60 -W 30 | python t.py
srun --nodefile hosts | python t.py
srun -F hosts | python t.py
srun -n 2 -- | python t.py
srun -n 2 | torchrun --nproc-per-node 4 t.py
srun -n 1 | python a.py : -n 3 | python b.py
srun -n1 -K | python a.py : -n3 --comment x | python b.py : | python c.py
srun --container-mounts /a:/b --container-workdir /a --no-container-mount-home | python t.py
srun --container-env A,B --container-writable | python t.py
srun | python t.py -K
mpiexec | python t.py
mpiexec -n 4 | python t.py
mpiexec --n 4 | python t.py
mpiexec -np 4 | python t.py
mpiexec --np 4 | python t.py
mpiexec --np=4 | python t.py
mpiexec -n 4 -- | python t.py
mpiexec -n 2 -host a,b | python t.py -n 3
mpiexec -n 1 | python a.py : -n 3 | python b.py
mpiexec -n 1 | a : -n 1 -wdir /x | b : -n 2 | c -n 3
mpiexec -np 8 --ppn 4 --cpu-bind list:0:1 --env A=1 -l --line-buffer | ./t.sh
mpiexec -n 8 -ppn 4 --depth=8 --cpu-bind depth | python t.py
mpiexec -n 8 --ppn 4 -d 8 | python t.py
mpiexec --ppn 4 --env A 1 --env B=2 | python t.py
mpiexec --no-abort-on-failure --envall --rlimits CORE --pmi pmix | python t.py
mpiexec --mem-bind local --gpu-bind list:0:1 --exclusive | python t.py
mpiexec --hostfile h --transfer --no-label --procinfo-file p | python t.py
mpiexec -genv A B -env C D -n 2 | python t.py
mpiexec -genv A=B -env C=D -n 2 | python t.py
mpiexec -launcher-exec ssh -n 2 | python t.py
mpiexec -launcher ssh -iface ib0 -n 2 | python t.py
mpiexec --report-bindings | python t.py
mpiexec --map-by node --bind-to core | python t.py
mpirun --report-pid - -n 2 | python t.py
mpirun --report-pid + | python t.py
mpirun -report-uri - | python t.py
mpirun --mca btl self,tcp -x PATH --oversubscribe -np 4 -H a:2,b:2 | python t.py -n 3
mpirun -mca btl self -gmca a b --omca c d --prtemca e f --pmixmca g h | python t.py
mpirun -x A=1 -x B | python t.py
mpirun --allow-run-as-root --tag-output --timestamp-output | python t.py
mpirun -oversubscribe -nolocal -bynode -display-map | python t.py
mpirun --map-by ppr:4:node --rank-by slot --bind-to none | python t.py
mpirun -map-by ppr:4:node -bind-to none | python t.py
mpirun --cpus-per-proc 4 --npernode 2 --npersocket 1 | python t.py
mpirun -pernode -N 2 | python t.py
mpirun --output-filename logs --merge-stderr-to-stdout | python t.py
mpirun --output tag --display map --runtime-options abort | python t.py
mpirun --prefix /opt/ompi --wdir /tmp --path /bin | python t.py
mpirun --rankfile r --hostfile h --machinefile m | python t.py
mpirun -rf r -cf c -am a | python t.py
mpirun --stdin all --timeout 60 --personality ompi | python t.py
mpirun --xterm 0 --debugger d --launch-agent l | python t.py
mpirun --with-ft ulfm --pset name --tmpdir /tmp | python t.py
mpirun -n 1 | a : -x B -n 2 | b
orterun -d -n 2 | python t.py
orterun -debug-devel -q -v -n 2 | python t.py
mpirun.openmpi --oversubscribe -n 2 | python t.py
mpiexec.openmpi -c 4 | python t.py
mpiexec.hydra -launcher fork -hosts a:2,b:2 -genv A B -n 4 | python t.py
mpiexec.hydra -bootstrap ssh -bootstrap-exec /bin/ssh -n 2 | python t.py
mpiexec.hydra -launcher=fork -n=2 | python t.py
mpiexec.hydra -genv=A B -n 2 | python t.py
mpiexec.hydra -env=A=B -n 2 | python t.py
mpiexec.hydra -genvall -envnone -genvlist A,B -envlist C | python t.py
mpiexec.hydra -f hosts -rmk slurm -usize 8 -demux poll | python t.py
mpiexec.hydra -bind-to core -map-by hwthread -membind local -topolib hwloc | python t.py
mpiexec.hydra -prepend-rank -l -print-all-exitcodes -verbose -disable-auto-cleanup | python t.py
mpiexec.hydra -outfile-pattern o.%r -errfile-pattern e.%r -prepend-pattern %r | python t.py
mpiexec.hydra -gpus-per-proc 1 -order-nodes ascending -nameserver h:1 | python t.py
mpiexec.hydra -localhost me -pmi-port -skip-launch-node -profile | python t.py
mpiexec.hydra -perhost 4 -hosts-group a[1-4] -print-rank-map -ordered-output | python t.py
mpiexec.hydra -gtool perf:0 -rr -silent-abort -tmpdir /x -s all | python t.py
mpiexec.hydra --np 2 | a : --np 2 | b
mpirun.mpich -ppn 2 -n 4 | python t.py
mpirun_rsh -np 4 -hostfile hosts | ./t
mpirun_rsh -np 4 -hostfile hosts A=1 B=2 | python t.py
mpirun_rsh -ssh -export-all -np 4 --hostfile=hosts MV2_DEBUG=1 | python t.py
mpirun_rsh -launcher srun -np 8 -ppn 4 | python t.py a=b
mpirun_rsh -n 4 -f hosts -show -legacy | python t.py
torchrun | t.py
torchrun --nproc-per-node 2 | t.py
torchrun --nproc-per-node=2 | t.py
torchrun --nproc_per_node 2 | t.py
torchrun --nproc_per_node=2 | t.py --nproc_per_node 3
torchrun --nproc_per 2 | t.py
torchrun --nn 2 | t.py
torchrun --standalone --nnodes 1 -- | t.py --lr 1
torchrun -- | t.py
torchrun -m | pkg.train
torchrun --module --nnodes 2 | pkg.train
torchrun --no-python | ./t
torchrun --no_py | ./t
torchrun -r 3 -t 3 | t.py
torchrun -r3 -t3 | t.py
torchrun -mr 3 | pkg.train
torchrun --rdzv-backend c10d --rdzv_id 3 --rdzv-endpoint h:1 --rdzv_conf a=b | t.py
torchrun --redirects 3 --tee 3 --log-dir d --local-ranks-filter 0 | t.py
torchrun --duplicate-stdout-filters a --shutdown_timeout 3 --event-log-handler null | t.py
torchrun --max-restarts 3 --monitor-interval 1 --start-method fork --role r | t.py
torchrun --node-rank 0 --master-addr a --master_port 1 --local-addr b | t.py
torchrun --numa-binding node --logs-specs l --signals-to-handle SIGTERM --virtual-local-rank | t.py
python -m torch.distributed.run --nnodes 2 | t.py
python3.11 -m torch.distributed.run -- | t.py
accelerate launch | t.py
accelerate launch --num_processes 2 --cpu | t.py --lr 1
accelerate launch --num-processes 2 | t.py
accelerate launch --num_processes=2 --multi_gpu | t.py
accelerate launch --config_file c.yaml -m | pkg.train
accelerate launch --module | pkg.train
accelerate launch --no_python | ./t
accelerate launch --no-python | ./t
accelerate launch -q --debug | t.py
accelerate launch -qm | pkg.train
accelerate launch -- | t.py
accelerate launch --use_fsdp --fsdp_offload_params true | t.py
accelerate launch --fsdp-offload-params false --fsdp_version 2 | t.py
accelerate launch --use_deepspeed --zero_stage 3 --zero3_init_flag true | t.py
accelerate launch --deepspeed_config_file d.json --deepspeed_hostfile h | t.py
accelerate launch --use_megatron_lm --megatron_lm_tp_degree 2 --megatron_lm_sequence_parallelism true | t.py
accelerate launch --mixed_precision bf16 --dynamo_backend no --dynamo_use_dynamic | t.py
accelerate launch --machine_rank 0 --main_process_ip a --main_process_port 1 --same_network | t.py
accelerate launch --gpu_ids 0,1 --rdzv_backend c10d -t 3 --tee 3 | t.py
accelerate launch --fp8_backend te --fp8_use_autocast_during_eval --fp8_margin 1 | t.py
accelerate launch --parallelism_config_tp_size 2 --use_parallelism_config | t.py
accelerate-launch --num_processes 2 | t.py
python -m accelerate.commands.launch --cpu | t.py
deepspeed | t.py
deepspeed --num_gpus 2 | t.py --deepspeed ds.json
deepspeed --num_gpus=2 | t.py
deepspeed --num_g 2 | t.py
deepspeed --num_accelerators 2 | t.py
deepspeed -H hosts -i a:0 | t.py
deepspeed -Hhosts -qe b | t.py
deepspeed --hostfile hosts --include a@b:0 --exclude c | t.py
deepspeed --module --no_local_rank | pkg.train
deepspeed --no_python | ./t
deepspeed --enable_each_rank_log logs --log_level debug | t.py
deepspeed --launcher slurm --launcher_args "-n 2 -x" | t.py
deepspeed --bind_cores_to_rank --bind_core_list 0-3 --ssh_port 22 --venv_script v | t.py
deepspeed --force_multi --no_ssh --node_rank 0 --master_addr a --master_port 1 | t.py
deepspeed -- | t.py
"""

# The program is not told by the command line, an option is in no table, or the tables do not agree.
ENVIRONMENT_LINES = """
srun --multi-prog tasks.conf
srun -n 2 --multi-prog tasks.conf
srun --multi tasks.conf
srun --bcast /tmp/t ./t
srun --bcast=/tmp/t ./t
srun --container-image=nvcr.io#nvidia/pytorch:24.01-py3 python t.py
srun --container-image nvcr.io#nvidia/pytorch python t.py
srun --container-mounts /a:/a --container-image image.sqsh python t.py
srun --container-name train python t.py
srun --container bundle python t.py
srun --new-option python t.py
srun --new-option 3 python t.py
srun --new-option=3 python t.py
srun --site-plugin python python t.py
srun --no python t.py
srun -y python t.py
srun -ly python t.py
srun -n 1 python a.py : --new-option 3 python b.py
srun -n 2
srun -n
srun -n 2 --
srun python a.py :
mpiexec --new-flag python t.py
mpiexec --new-flag --other 3 -n 2 python t.py
mpiexec -n 2
mpiexec -n 2 python a.py : --new-flag python b.py
mpiexec -configfile programs
mpiexec --configfile programs
mpiexec -d 8 python t.py
mpiexec -n4 python t.py
mpirun --app programs
mpirun -s ./t
mpirun --preload-binary ./t
mpirun --display-topo x python t.py
mpirun -soft 2 -x A python t.py
mpirun -tune file python t.py
mpirun.lsf python t.py
mpiexec_mpt -n 2 python t.py
mpiexec.hydra -trace python t.py
mpiexec.hydra -unknown 3 python t.py
mpirun_rsh -np 2 a b ./t
mpirun_rsh -np 2 ./t
mpirun_rsh -config programs -hostfile hosts
mpirun_rsh -hostfile hosts -unknown ./t
torchrun --run-path /a/t.py
torchrun --run_path /a/t.py
torchrun --run /a/t.py
torchrun --new-option 3 t.py
torchrun --nproc-per-node 2
torchrun --nproc-per-node 2 --
torchrun --r 3 t.py
torchrun -z t.py
accelerate launch --num_proc 2 t.py
accelerate launch --new_option true t.py
accelerate config
deepspeed --new_option 3 t.py
deepspeed --num-gpus 3 t.py
deepspeed --no t.py
jsrun -n 2 python t.py
flux run -n 2 python t.py
bash t.sh
python t.py
"""


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


def with_bars(command: str) -> str | None:
    """The command with a bar before each program; None where its programs cannot be told."""
    words = shlex.split(command)
    if Path(words[0]).name in MPI:
        inserted = rewrite(words, ["|"], {})
        return None if inserted is None else " ".join(inserted)
    heads: dict[str, Grammar] = {
        "torchrun": TORCHRUN,
        "python -m torch.distributed.run": TORCHRUN,
        "python3.11 -m torch.distributed.run": TORCHRUN,
        "accelerate launch": ACCELERATE,
        "accelerate-launch": ACCELERATE,
        "python -m accelerate.commands.launch": ACCELERATE,
        "deepspeed": DEEPSPEED,
    }
    for head, grammar in heads.items():
        if command.startswith(f"{head} ") or command == head:
            rest = words[len(head.split()) :]
            line = read_options(rest, grammar)
            if line is None or line.program is None:
                return None
            return (
                shlex.join([*head.split(), *rest[: line.program]]) + " | " + shlex.join(rest[line.program :])
            )
    return None if rewrite(words, ["|"], {}) is None else command


@pytest.mark.parametrize("line", lines(PROGRAM_LINES))
def test_the_program_begins_at_the_bar(line: str) -> None:
    marked = with_bars(line.replace(" | ", " "))
    assert marked is not None
    assert shlex.split(marked) == shlex.split(line)


@pytest.mark.parametrize("line", lines(ENVIRONMENT_LINES))
def test_what_cannot_be_told_is_left_to_the_environment(line: str) -> None:
    assert with_bars(line) is None
    assert rewrite(shlex.split(line), ["|"], {}) is None


def test_torchruns_own_variables_leave_it_to_the_environment() -> None:
    assert rewrite(["torchrun", "t.py"], ["|"], {"PET_RUN_PATH": "1"}) is None


def differences(names: Mapping[str, bool], grammar: Grammar) -> list[str]:
    """Options (name: takes a value) that the table does not have, or has with another arity."""
    wrong = []
    for name, takes_value in names.items():
        takes = grammar.options.get(name.replace("_", "-") if grammar.underscores else name)
        if takes is None:
            wrong.append(f"{name} is not in the table")
        elif takes is not Takes.ENVIRONMENT and takes_value != (takes not in (Takes.NOTHING, Takes.ATTACHED)):
            wrong.append(f"{name}: {takes}, the launcher says otherwise")
    return wrong


def output_of(*words: str, env: Mapping[str, str]) -> str:
    """What an installed launcher prints; the test is skipped where it is not installed."""
    program = shutil.which(words[0])
    if program is None:
        pytest.skip(f"{words[0]} is not installed (tests/install-packages.sh)")
    done = subprocess.run(
        [program, *words[1:]],
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def slurm_conf(tmp_path: Path) -> dict[str, str]:
    """A configuration that lets srun print its help."""
    plugins = next(Path("/usr/lib").glob("*/slurm-wlm"), Path("/usr/lib/slurm"))
    text = f"ClusterName=x\nSlurmctldHost=x\nNodeName=x\nPartitionName=p Nodes=ALL\nPluginDir={plugins}\n"
    (tmp_path / "slurm.conf").write_text(text)
    return {"SLURM_CONF": str(tmp_path / "slurm.conf")}


def test_table_of_srun(slurm_conf: dict[str, str]) -> None:
    text = output_of("srun", "--help", env=slurm_conf)
    options = re.findall(r"^  (?:-(\w),?|   ) {1,2}--([\w-]+)(\[?=)?", text, re.M)
    assert len(options) > 100
    names = {}
    for short, name, equals in options:
        # the help of Slurm 22.05 shows no value for --container
        names[name] = equals == "=" or name == "container"
        names.update({short: names[name]} if short else {})
    assert differences(names, SRUN) == []


def test_table_of_srun_has_every_long_option(slurm_conf: dict[str, str]) -> None:
    """getopt lists all options that begin with an ambiguous abbreviation."""
    names: set[str] = set()
    for letter in "abcdeghijlmnopqrstuvw":
        names.update(re.findall(r"'--([\w-]{2,})'", output_of("srun", f"--{letter}", env=slurm_conf)))
    assert len(names) > 120
    assert names - set(SRUN.options) == set()


def test_table_of_openmpi() -> None:
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    text = output_of("orterun", "--help", "all", env=allowed)
    options = re.findall(r"^ {0,3}(-[\w|-]+)((?: <arg\d>)*)", text, re.M)
    assert len(options) > 80
    names = {name.lstrip("-"): bool(values) for spellings, values in options for name in spellings.split("|")}
    assert differences(names, OPENMPI) == []
    pairs = {n.lstrip("-") for spellings, values in options if "arg1" in values for n in spellings.split("|")}
    assert {OPENMPI.options[name] for name in pairs} == {Takes.PAIR}


def test_table_of_hydra() -> None:
    text = output_of("mpiexec.hydra", "-help", env={})
    options = re.findall(r"^    (-[\w/-]+)(?: ({.*?)})? {2}", text, re.M)
    assert len(options) > 40
    spelled = {name.lstrip("-"): values for names, values in options for name in names.split("/")}
    assert spelled.keys() - HYDRA.options.keys() == set()
    assert differences({name: True for name, values in spelled.items() if values}, HYDRA) == []


def parser_options(module: str, path: str, function: str) -> dict[str, bool]:
    """The options that a function gives to its ArgumentParser, from its source: importing it would import torch."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{module} is not installed")
    tree = ast.parse((Path(next(iter(spec.submodule_search_locations))) / path).read_text())
    [body] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
    options = {}
    for call in ast.walk(body):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            [action] = [ast.unparse(word.value) for word in call.keywords if word.arg == "action"] or [""]
            takes_value = action.strip("'") not in ("store_true", "store_false", "help", "check_env")
            for word in call.args:
                if (
                    isinstance(word, ast.Constant)
                    and isinstance(word.value, str)
                    and word.value.startswith("-")
                ):
                    options[word.value.lstrip("-")] = takes_value
    return options


@pytest.mark.parametrize(
    ("module", "path", "function", "grammar"),
    [
        ("torch", "distributed/run.py", "get_args_parser", TORCHRUN),
        ("accelerate", "commands/launch.py", "launch_command_parser", ACCELERATE),
        ("deepspeed", "launcher/runner.py", "parse_args", DEEPSPEED),
    ],
)
def test_table_of_a_python_launcher(module: str, path: str, function: str, grammar: Grammar) -> None:
    options = parser_options(module, path, function)
    assert len(options) > 20
    assert differences(options, grammar) == []
