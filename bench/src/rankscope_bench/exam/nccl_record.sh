#!/bin/bash
# Records the jobs of nccl_jobs.py over real NCCL, four ranks on one GPU, and puts them into $OUT/recorded-*.tar.
#
#     TOOL=build/nccl-on-one-gpu VARIANTS=none,host SECONDS_IN_ALL=500 bench/src/rankscope_bench/exam/nccl_record.sh [KIND ...]
#
# STEPS (6) are recorded of each variant; SCALE (1): what is planted takes so many times as long.
# TOOL: the folder with ddp.py, a job that shows whether NCCL works there; not asked where it is empty. Each rank says
# that it is a host of its own (nccl_jobs.py does), and MPS lets the kernels of all of them run at the same time.
# BACKEND=gloo tries all of this without a GPU.
set -u
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
backend=${BACKEND:-nccl}
out=${OUT:?the folder for the archives}
records=$(mktemp -d)
ends=$(($(date +%s) + ${SECONDS_IN_ALL:-500} - 60)) # the last minute is for the archives
[ $# -gt 0 ] || set -- ddp fsdp2 pipelining tp all_to_all ddp-small
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1

train() { # NAME SECONDS PROGRAM ARGUMENT ...
    local name=$1 seconds=$2
    shift 2
    timeout --kill-after 10 "$seconds" "$python" -m torch.distributed.run --nproc-per-node 4 \
        --master-port $((29600 + RANDOM % 300)) "$@" >>"$records/$name.log" 2>&1
}

if [ "$backend" = nccl ]; then
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    nvidia-cuda-mps-control -d
    trap 'echo quit | nvidia-cuda-mps-control' EXIT
    if [ -n "${TOOL:-}" ]; then
        STEPS=5 train check 90 "$TOOL/ddp.py" || { tail -n 40 "$records/check.log"; exit 1; }
        grep -e all_reduce -e "step ms" "$records/check.log"
    fi
fi
left=$#
for kind in "$@"; do
    until=$(($(date +%s) + (ends - $(date +%s)) / left)) # an equal part of what is left
    left=$((left - 1))
    for attempt in 1 2 3; do # a variant that fails ends the processes; the next attempt leaves it out
        now=$(date +%s)
        [ "$attempt" -gt 1 ] && [ "$now" -gt $((until - 20)) ] && break
        train "$kind" $((until - now + 60)) "$here/nccl_jobs.py" "$kind" "$records" --backend "$backend" \
            --attempt "$attempt" --until "$until" --variants "${VARIANTS:-}" && break
        echo "$kind: attempt $attempt failed"
        grep -A 12 -e " rank [0-9]: " "$records/$kind.log" | tail -n 20
    done
    grep -h " ms a step, " "$records/$kind.log"
done
"$python" "$here/nccl_jobs.py" "$records" --pack "$out"
tail -n 300 "$records"/*.log >"$out/messages.txt"
ls -l "$out"
rm -rf "$records"
