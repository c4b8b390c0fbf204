#!/bin/bash
#PBS -N train
#PBS -l select=2:ncpus=8
#PBS -l place=scatter
#PBS -l walltime=00:30:00
#PBS -q q
#PBS -W block=true

set -u
cd "${PBS_O_WORKDIR:-.}" || exit 1
job="${PBS_JOBID:?this script is for qsub}"
mkdir -p "logs"
exec >"logs/${job%%.*}.out" 2>"logs/${job%%.*}.err"

set +u
conda activate base
. env/bin/activate
set -u

export A=1
export PYTHONUNBUFFERED=1
MASTER_ADDR=$(if [ -r "${PBS_NODEFILE:-}" ]; then head -n 1 "$PBS_NODEFILE"; else mpirun -n 1 --map-by ppr:1:node -x PATH hostname; fi)
export MASTER_ADDR
export MASTER_PORT=$((20000 + ${job%%[!0-9]*} % 20000))

if ! command -v rankscope >/dev/null; then
    echo "rankscope: not on PATH on $(hostname); give its environment: --venv, --conda, --modules" >&2
    exit 1
fi

# The run folder, and a folder on each node's disk, where the profiler writes while the job runs.
run=rankscope-train-"$job"
case $run in /*) ;; *) run="$PWD/$run" ;; esac
scratch="/tmp/rankscope-${USER:-$(id -un)}-$job"
if [ -e "$run/rankscope.json" ]; then
    echo "rankscope: $run holds another run; name another folder with -o DIR, or add -f" >&2
    exit 1
fi
mpirun -n 2 --map-by ppr:1:node -x PATH mkdir -p "$scratch/tmp" || exit 1
mkdir -p "$run" || exit 1

# On TERM (walltime, or the job is cancelled): the ranks write what they have recorded, then the script continues.
launcher=
ended=
signal_ranks() {
    ended=TERM
    [ -z "$launcher" ] || kill -TERM "$launcher"
}
trap signal_ranks TERM

run_step() {
    "$@" &
    launcher=$!
    wait "$launcher"
    status=$?
    # A trap interrupts `wait`; the launcher is still running.
    while kill -0 "$launcher" 2>/dev/null; do
        wait "$launcher"
        status=$?
    done
    [ "$status" -ne 124 ] || ended=TERM
    launcher=
}

run_step timeout --foreground --signal=TERM $((1740 - SECONDS)) \
    mpirun -n 8 --map-by ppr:4:node --tag-output --bind-to core \
    -x TMPDIR="$scratch/tmp" \
    -x PATH -x PYTHONUNBUFFERED -x MASTER_ADDR -x MASTER_PORT -x A \
    rankscope profile -o "$scratch/run" --quiet -- \
    python train.py --note 'it'"'"'s "two"
lines, $HOME'

# Copy the files from every node's disk to the run folder, all nodes at once, after a failure too.
if mpirun -n 2 --map-by ppr:1:node -x PATH \
    rankscope job collect "$scratch/run" "$run"; then
    mpirun -n 2 --map-by ppr:1:node -x PATH rm -rf "$scratch"
else
    echo "rankscope: not all files could be copied; they are still in $scratch on the nodes" >&2
fi

[ -z "$ended" ] || echo "rankscope: the job was ended early; the recording may be partial" >&2
echo "rankscope: the run is in $run"
rankscope stats "$run" || true
echo "$job" "$status" >"$run/.job-exit-code"
exit "$status"
