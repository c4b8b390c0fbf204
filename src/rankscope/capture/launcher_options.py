"""The options of the launchers: which take a value, and with which of them the program is not ours to change.

Names are written without dashes; a name of one letter is a short option. Each table is the union over the versions in
use. Sources: Slurm 22.05 to 26.05 (slurm_opt.c), pyxis, Open MPI 4.1 and 5 (PRRTE), MPICH's hydra and Intel MPI,
Cray PALS, MVAPICH, and the argument parsers of torchrun, accelerate 1.15 and deepspeed 0.19.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple


class Takes(enum.Enum):
    """What follows an option."""

    NOTHING = "nothing, or a value that can only be attached (--nice, --nice=5)"
    ATTACHED = "a short option whose value, if any, is the rest of its word (-K, -K0)"
    VALUE = "a value: the next word, or attached"
    PAIR = "a name and a value, two words"
    VARIABLE = "NAME=VALUE, or the two as separate words"
    ENVIRONMENT = "the command line does not name the program, or it runs where our Python may not exist"


class Grammar(NamedTuple):
    """How a launcher reads its command line up to the program."""

    options: Mapping[str, Takes]
    # -lN2 is -l -N 2; a long option has two dashes. Without it, one dash and two mean the same.
    bundles: bool = False
    # an unambiguous beginning of a long option stands for it (getopt_long, argparse)
    abbreviations: bool = False
    # --log_dir is --log-dir
    underscores: bool = False
    # `a : b`: several programs in one command line
    colon: bool = False
    # NAME=VALUE words may stand before the program
    assignments: bool = False


def _options(flags: str, values: str, **others: str) -> dict[str, Takes]:
    """The table: ``others`` are attached, pair, variable and environment."""
    names = {"nothing": flags, "value": values, **others}
    return {name: Takes[kind.upper()] for kind, text in names.items() for name in text.split()}


def _group(prefix: str, names: str) -> str:
    return " ".join(f"{prefix}{name}" for name in names.split()) + " "


SRUN = Grammar(
    _options(
        flags="E H O Q V X Z h l s u v "
        "async compress consolidate-segments contiguous debugger-test disable-status exact exclusive "
        "external-launcher help hold immediate interactive kill-on-bad-exit label nice no-allocate no-kill "
        "oom-kill-step overcommit overlap oversubscribe parsable preserve-env propagate pty quiet "
        "quit-on-interrupt reboot resv-ports send-libs spread-job spread-segments stepmgr test-only unbuffered "
        "usage use-min-nodes verbose version wait-for-children whole x11 "
        # pyxis
        "container-entrypoint container-entrypoint-log container-mount-home container-readonly "
        "container-remap-root container-writable no-container-entrypoint no-container-mount-home "
        "no-container-remap-root",
        attached="I K k",
        values="A B C D F G J L M N S T W b c d e i m n o p q r t w x "
        "accel-bind account acctg-freq autocomplete bb bbf bcast-exclude begin chdir cluster "
        "cluster-constraint clusters comment constraint context core-spec cores-per-socket cpu-bind cpu-freq "
        "cpu_bind cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution epilog error exclude "
        "export extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task "
        "gres gres-flags het-group hint ignore-signals input job-name jobid licenses mail-type mail-user "
        "mcs-label mem mem-bind mem-per-cpu mem-per-gpu mem-update mincpus mpi msg-timeout network nodefile "
        "nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket "
        "ntasks-per-tres open-mode output pack-group partition power prefer priority profile prolog qos "
        "relative reservation resources runtime segment signal slurmd-debug sockets-per-node switches "
        "task-epilog task-prolog tasks-per-node thread-spec threads threads-per-core time time-min tmp "
        "treewidth tres-bind tres-per-task uid wait wckey "
        # pyxis
        "container-env container-mounts container-save container-unshare container-workdir",
        # a file that lists programs; containers; bcast copies the program, and a Python does not run from a copy
        environment="multi-prog bcast container container-id container-image container-name",
    ),
    bundles=True,
    abbreviations=True,
    colon=True,
)

OPENMPI = Grammar(
    _options(
        flags="V d p q v "
        "allow-run-as-root bind-to-core bind-to-socket bycore bynode byslot continuous debug debug-daemons "
        "debug-daemons-file debug-devel disable-recovery display-allocation display-comm display-comm-finalize "
        "display-devel-allocation display-devel-map display-diffable-map display-map do-not-launch "
        "do-not-resolve enable-instant-on-support enable-recovery fwd-mpirun-port get-stack-traces "
        "hetero-nodes index-argv-by-rank leave-session-attached merge-stderr-to-stdout no-aggregate-help "
        "no-app-prefix nolocal nooversubscribe noprefix novm oversubscribe parsable parseable pernode quiet "
        "report-bindings report-child-jobs-separately report-state-on-timeout set-cwd-to-session-dir "
        "show-progress stop-in-init stop-on-exec tag-output timestamp-output tv uniform-nodes "
        "use-hwthread-cpus use-regexp verbose version xml",
        values="H N c h n x "
        "am amca app-pmix-prefix arch bind-to bindto cartofile cf cpu-list cpu-set cpus-per-proc cpus-per-rank "
        "debugger default-hostfile display file forward-signals gpu-support help hnp host hostfile "
        "initial-errhandler launch-agent machinefile map-by mapby max-restarts max-vm-size memory-alloc-kinds "
        "np npernode npersocket ompi-server output output-directory output-filename path personality ppr "
        "prefix preload-files pset rank-by rankby rankfile report-events report-pid report-uri rf rtos "
        "runtime-options spawn-timeout stdin stream-buffering timeout tmpdir tune wd wdir with-ft xml-file "
        "xterm",
        pair="gmca gomca mca omca pmixmca prtemca",
        # a file that lists programs; copies of the program; options of which versions 4 and 5 differ
        environment="app preload-binary s display-topo dvm fwd-environment output-proctable stop-in-app",
    ),
    colon=True,
)

HYDRA = Grammar(
    _options(
        flags="h l v "
        "debug disable-auto-cleanup disable-hostname-propagation disable-x enable-auto-cleanup "
        "enable-hostname-propagation enable-x envall envnone genvall genvnone help hybrid-hosts info pmi-port "
        "prepend-rank print-all-exitcodes profile report-bindings skip-launch-node verbose version "
        # Intel MPI
        "V aps gdb ilp64 mps noconf nolocal ordered-output pmi-aggregate pmi-noaggregate print-rank-map rr "
        "silent-abort trace-imbalance trace-pt2pt",
        values="f g n "
        "bind-to binding bootstrap bootstrap-exec demux envlist errfile errfile-pattern genvlist "
        "gpu-subdevs-per-proc gpus-per-proc host hostfile hostlist hosts iface launcher launcher-exec "
        "localhost machine machinefile machinelist machines map-by membind memory-alloc-kinds nameserver np "
        "order-nodes outfile outfile-pattern output-from ppn prepend-pattern rankmap rmk topolib usize wdir "
        # MPICH 3 and MVAPICH2
        "ckpoint-interval ckpoint-num ckpoint-prefix ckpointlib "
        # Intel MPI
        "bootstrap-exec-args branch-count gdba genvexcl grr gtool gtoolfile hosts-group path perhost "
        "pmi-connect s tmpdir umask",
        variable="env genv",
        # a file that lists programs; options of Intel MPI whose value may be missing
        environment="configfile pmi_args check_mpi t trace tune",
    ),
    colon=True,
)

PALS = Grammar(
    _options(
        flags="h l q v "
        "abort-on-failure envall envnone exclusive genvall genvnone help label line-buffer "
        "no-abort-on-failure no-label no-line-buffer no-sstartup no-transfer quiet shared sstartup transfer "
        "verbose version",
        values="d f n "
        "arch cpu-bind depth envlist exclude-tasks file genvlist gpu-bind host hostfile hostlist hosts "
        "include-tasks mem-bind np path pmi ppn procinfo-file rlimits soft umask wdir",
        variable="env genv",
        environment="configfile",
    ),
    colon=True,
)

MPIRUN_RSH = Grammar(
    _options(
        flags="v debug dpm export export-all fastssh gdb help legacy rsh show ssh startedByTv tv xterm",
        values="f n dpmspawn env hostfile launcher machinefile np ppn sg sparehosts spawnfile",
        environment="config",
    ),
    abbreviations=True,
    assignments=True,
)

TORCHRUN = Grammar(
    _options(
        flags="h m help module no-python standalone virtual-local-rank",
        values="r t "
        "duplicate-stderr-filters duplicate-stdout-filters event-log-handler local-addr local-ranks-filter "
        "log-dir logs-specs master-addr master-port max-restarts monitor-interval nnodes node-rank "
        "nproc-per-node numa-binding rdzv-backend rdzv-conf rdzv-endpoint rdzv-id redirects role "
        "shutdown-timeout signals-to-handle start-method tee",
        # torchrun runs the script inside its own worker
        environment="run-path",
    ),
    bundles=True,
    abbreviations=True,
    underscores=True,
)

DEEPSPEED = Grammar(
    _options(
        flags="h q bind_cores_to_rank elastic_training force_multi help module no_local_rank no_python no_ssh "
        "no_ssh_check quiet save_pid",
        values="H e i "
        "autotuning bind_core_list enable_each_rank_log exclude hostfile include launcher launcher_args "
        "log_level master_addr master_port max_elastic_nodes min_elastic_nodes node_rank num_accelerators "
        "num_gpus num_nodes ssh_port venv_script",
    ),
    bundles=True,
    abbreviations=True,
)

ACCELERATE = Grammar(
    _options(
        flags="h m q "
        "cpu debug downcast-bf16 dynamo-use-dynamic dynamo-use-fullgraph dynamo-use-regional-compilation "
        "enable-cpu-affinity fp8-use-autocast-during-eval help ipex module multi-gpu no-python no-tpu-cluster "
        "quiet same-network tpu tpu-cluster tpu-use-sudo use-deepspeed use-fsdp use-megatron-lm use-mps-device "
        "use-parallelism-config use-xpu",
        values="t "
        "aws-access-key-id aws-secret-access-key config-file dynamo-backend dynamo-mode env gpu-ids "
        "gradient-accumulation-steps gradient-clipping log-dir machine-rank main-process-ip main-process-port "
        "main-training-function max-restarts mixed-precision monitor-interval mpirun-ccl mpirun-hostfile "
        "num-cpu-threads-per-process num-machines num-processes offload-optimizer-device "
        "offload-optimizer-nvme-path offload-param-device offload-param-nvme-path rdzv-backend rdzv-conf role "
        "tee vm zero-stage zero3-init-flag zero3-save-16bit-model "
        + _group(
            "deepspeed-",
            "config-file exclusion-filter hostfile inclusion-filter moe-layer-cls-names multinode-launcher",
        )
        + _group(
            "fsdp-",
            "activation-checkpointing activation-checkpointing-offload auto-wrap-policy backward-prefetch "
            "cpu-ram-efficient-loading forward-prefetch min-num-params offload-params reshard-after-forward "
            "sharding-strategy state-dict-type sync-module-states transformer-layer-cls-to-wrap use-orig-params "
            "version",
        )
        + _group(
            "megatron-lm-",
            "attention-backend attention-dropout attention-softmax-in-fp32 calculate-per-token-loss "
            "context-parallel-size decoder-last-pipeline-num-layers eod-mask-loss expert-model-parallel-size "
            "expert-tensor-parallel-size gradient-clipping hidden-dropout no-load-optim no-save-optim "
            "num-micro-batches optimizer-cpu-offload overlap-cpu-optimizer-d2h-h2d pp-degree "
            "recompute-activations recompute-granularity recompute-method recompute-num-layers "
            "sequence-parallelism tp-degree use-custom-fsdp use-distributed-optimizer "
            "use-precision-aware-optimizer use-rotary-position-embeddings",
        )
        + _group(
            "fp8-",
            "amax-compute-algo amax-history-len backend enable-fsdp-float8-all-gather format interval margin "
            "opt-level override-linear-precision pad-inner-dim",
        )
        + _group(
            "parallelism-config-",
            "cp-backend cp-comm-strategy cp-size dp-replicate-size dp-shard-size sp-attn-implementation "
            "sp-backend sp-seq-length sp-seq-length-is-variable sp-size tp-size",
        ),
    ),
    bundles=True,
    underscores=True,
)

# mpiexec and mpirun may be any of three: the command line is read with each table that has all of its options.
MPI: Mapping[str, tuple[Grammar, ...]] = {
    **dict.fromkeys(("mpiexec", "mpirun"), (OPENMPI, HYDRA, PALS)),
    **dict.fromkeys(("orterun", "mpiexec.openmpi", "mpirun.openmpi"), (OPENMPI,)),
    **dict.fromkeys(("mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich"), (HYDRA,)),
    "mpirun_rsh": (MPIRUN_RSH,),
    "srun": (SRUN,),
}
