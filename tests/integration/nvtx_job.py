"""A job without torch or a GPU: NVTX ranges that name its rank, then the exit code or signal asked for."""

import argparse
import os
import signal
import sys
import time

import nvtx

RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID")

parser = argparse.ArgumentParser()
parser.add_argument("--exit-code", type=int, default=0)
parser.add_argument("--kill", type=int, help="die by this signal")
parser.add_argument("--seconds", type=float, default=0.2)
parser.add_argument("--answer", action="store_true", help="print the signals received; SIGTERM exits with 3")
parser.add_argument("--echo-stdin", action="store_true")
args = parser.parse_args()


def answer(number: int, _frame: object) -> None:
    print(f"signal {number}", flush=True)
    if number == signal.SIGTERM:
        sys.exit(3)


if args.answer:
    for wanted in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(wanted, answer)
rank = next((os.environ[name] for name in RANKS if name in os.environ), "0")
print(f"job of rank {rank} begins, TMPDIR {os.environ.get('TMPDIR')}", flush=True)
if args.echo_stdin:
    print("stdin:", sys.stdin.readline().strip(), flush=True)
print("to stderr", file=sys.stderr, flush=True)
deadline = time.monotonic() + args.seconds
while time.monotonic() < deadline:
    with nvtx.annotate(f"step of rank {rank}"):
        time.sleep(0.02)
if args.kill:
    os.kill(os.getpid(), args.kill)
sys.exit(args.exit_code)
