"""The description of a synthetic run: its size, its planted faults, its clocks; and the job simulated for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankscope.errors import UsageError
from rankscope_bench.synthetic.defects import CATALOGUE, Defect, check_combination
from rankscope_bench.synthetic.job import Fault, Job, Slower
from rankscope_bench.synthetic.recording import segment

CAUSES = ("compute", "host", "copy", "dataloader")

# No real clock drifts more, and ns times ppb would overflow 64 bits within hours.
MAX_DRIFT_PPM = 1000.0
MAX_LEAVE_NOISE_NS = 1_000_000
_JITTER_PCT = 2.0
_MOST_BUCKETS = 8
_MOST_LAYERS = 64  # the activations of more do not fit into an H200


@dataclass(frozen=True)
class Straggler:
    """One rank that is late to the first collective of every step."""

    rank: int
    cause: str
    """compute (a kernel takes longer), host (the host pauses while the GPU is idle), copy (the copy of the batch
    takes longer) or dataloader (the wait for the batch takes longer)."""
    ns: int
    """By how much, in every step."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A synthetic run. Its files depend on nothing else."""

    ranks: int
    """World size."""
    events_per_rank: int
    """Elements of traceEvents in each file, exactly."""
    steps: int = 6
    """ProfilerSteps in each file."""
    seed: int = 0
    """Jitter, clocks and trace ids follow from it."""
    gzip: bool = False
    """Write .json.gz."""
    with_stack: bool = False
    """Add python_function frames."""
    straggler: Straggler | None = None
    """The late rank, if any."""
    max_offset_ns: int = 0
    """Largest clock offset of a rank; rank 0 has none."""
    max_drift_ppm: float = 0.0
    """Largest clock drift of a rank; rank 0 has none."""
    leave_noise_ns: int = 0
    """Each rank leaves a collective up to this much after its end, at random."""
    missing: tuple[int, ...] = ()
    """Ranks that took part but whose files are not written."""
    tensor_parallel: int | None = None
    """Ranks per tensor-parallel group; the data-parallel groups run across them. None: one group of all."""
    slower: tuple[Slower, ...] = ()
    """Kernels whose duration is multiplied."""
    step_noise_pct: float = 0.0
    """In every step of every rank, all kernels are longer by 0 to this much, as with a varying GPU clock."""
    jitter: bool = True
    """False: every kernel, call and transfer takes the same time wherever it runs."""
    latency_ns: int = 12_000
    """Latency of a collective, before its first byte moves."""
    bus_gb_s: float = 300.0
    """busbw of collectives, as nccl-tests defines it; 0: no transfer time."""
    defects: tuple[Defect, ...] = ()
    """Damage applied to the files after they are written."""

    def __post_init__(self) -> None:
        _at_least("--ranks", self.ranks, 1)
        _at_least("--steps", self.steps, 1)
        _at_least("--seed", self.seed, 0)
        if self.max_offset_ns < 0:
            raise UsageError(
                "a clock offset cannot be negative here",
                why="It is the largest offset of any rank, in either direction.",
                hint="Write it like --offset 2.5",
            )
        if not 0 <= self.leave_noise_ns <= MAX_LEAVE_NOISE_NS:
            raise UsageError(
                f"ranks cannot leave a collective {self.leave_noise_ns:,} ns late",
                why=f"Up to {MAX_LEAVE_NOISE_NS:,} ns (1 ms) is allowed: gloo's ends spread by 0.1 to 0.7 ms.",
                hint="Write it like --leave-noise 0.02, in milliseconds",
            )
        if not 0 <= self.max_drift_ppm <= MAX_DRIFT_PPM:
            raise UsageError(
                f"a clock drift of {self.max_drift_ppm:g} ppm is out of range",
                why=f"Clocks of computers drift by 1 to 100 ppm; up to {MAX_DRIFT_PPM:g} is allowed.",
                hint="Write it like --drift 20",
            )
        self._check_speeds()
        self._check_straggler()
        self._check_missing()
        width = self.tensor_parallel
        if width is not None and (width < 2 or self.ranks % width):
            raise UsageError(
                f"{self.ranks} ranks cannot be split into tensor-parallel groups of {width}",
                why="Groups have at least two ranks and all the same size.",
                hint="Choose --groups tp=N such that N divides --ranks",
            )
        self._check_defects()

    def _check_defects(self) -> None:
        for defect in self.defects:
            if defect.name not in CATALOGUE:
                raise UsageError(
                    f"'{defect.name}' is not a defect",
                    why=f"There are: {', '.join(CATALOGUE)}.",
                    hint="See: rankscope bench synthetic --defect list",
                )
            self._check_rank(defect.rank, f"--defect {defect.name}@{defect.rank}")
            if defect.rank in self.missing:
                raise UsageError(
                    f"rank {defect.rank} cannot be damaged by '{defect.name}'",
                    why="It is among the missing ranks: its file is not written.",
                    hint="Choose another rank: --defect NAME@RANK",
                )
        check_combination(self.defects)

    def _check_rank(self, rank: int, option: str) -> None:
        if not 0 <= rank < self.ranks:
            raise UsageError(
                f"{option}: there is no rank {rank}",
                why=f"The run has ranks 0 to {self.ranks - 1}.",
                hint="Name one of them, or give a larger --ranks",
            )

    def _check_speeds(self) -> None:
        for slower in self.slower:
            if not 0 < slower.factor <= 1000:
                raise UsageError(
                    f"kernels cannot take {slower.factor:g} times as long",
                    why="A factor is above 0 and at most 1000.",
                    hint="Write it like --slower gelu=1.03",
                )
        if not 0 <= self.step_noise_pct <= 1000 or self.bus_gb_s < 0 or self.latency_ns < 0:
            raise UsageError(
                "noise, latency and bandwidth cannot be negative",
                why=f"Noise {self.step_noise_pct:g} %, latency {self.latency_ns} ns, bus {self.bus_gb_s:g} GB/s.",
                hint="Write them like --step-noise 2 --bus 300",
            )

    def _check_straggler(self) -> None:
        if self.straggler is None:
            return
        self._check_rank(self.straggler.rank, "--straggler")
        if self.straggler.cause not in CAUSES:
            raise UsageError(
                f"'{self.straggler.cause}' is not a cause a straggler can have",
                why=f"There are: {', '.join(CAUSES)}.",
                hint="Write it like --straggler 2:compute:12",
            )
        if self.straggler.ns <= 0:
            raise UsageError(
                "a straggler must be late by more than 0",
                why=f"Rank {self.straggler.rank} would not differ from the others.",
                hint="Write it like --straggler 2:compute:12, in milliseconds",
            )

    def _check_missing(self) -> None:
        for rank in self.missing:
            self._check_rank(rank, "--missing")
        if len(set(self.missing)) == self.ranks:
            raise UsageError(
                "every rank is missing", why="No file would be written.", hint="Leave at least one rank"
            )

    @property
    def present(self) -> list[int]:
        """Ranks whose files are written."""
        return [rank for rank in range(self.ranks) if rank not in self.missing]

    def job(self) -> Job:
        """What is simulated: layers and micro-batches such that each file has exactly the requested events."""
        tensor = self.tensor_parallel or 1
        straggler = self.straggler
        job = Job(
            model="gpt",
            data=self.ranks // tensor,
            tensor=tensor,
            steps=self.steps,
            layers=1,
            micro_batches=1,
            most_buckets=_MOST_BUCKETS,
            sharded=True,
            norm_ns=1,
            latency_ns=self.latency_ns,
            bus_gb_s=self.bus_gb_s,
            batch_copy_ns=None,
            data_wait_ns=0,
            noise_pct=_JITTER_PCT if self.jitter else 0.0,
            step_noise_pct=self.step_noise_pct,
            leave_ns=self.leave_noise_ns,
            offset_ns=self.max_offset_ns,
            drift_ppb=round(self.max_drift_ppm * 1000),
            slower=self.slower,
            faults=(Fault(straggler.cause, (straggler.rank,), straggler.ns),) if straggler else (),
            seed=self.seed,
        )
        tail = segment("tail").events(self.with_stack).total()
        shortest, rest = divmod(self.events_per_rank - tail, self.steps)
        least = self._step_events(job)
        if least > shortest:
            raise UsageError(
                f"{self.events_per_rank} events a rank are too few for {self.steps} steps",
                why=f"One layer, its collectives and the optimizer take {least} events a step.",
                hint=f"Give --events {least * self.steps + tail} or more, or fewer --steps",
            )

        def fitting(batches: int) -> Job:
            """With as many layers as leave no event too many."""
            sizes = (replace(job, layers=n, micro_batches=batches) for n in range(_MOST_LAYERS, 1, -1))
            return next((size for size in sizes if self._step_events(size) <= shortest), job)

        most = self._step_events(replace(job, layers=_MOST_LAYERS))
        job = fitting(-(-shortest // most))
        used = self._step_events(job)
        filler = tuple(shortest + (step < rest) - used for step in range(self.steps))
        return replace(job, filler=filler)

    def _step_events(self, job: Job) -> int:
        def events(*names: str) -> int:
            return sum(segment(f"gpt.{name}").events(self.with_stack).total() for name in names)

        buckets = len(job.buckets(job.layers))
        collectives = 0
        if job.tensor > 1:
            collectives += 2 * job.batches * buckets
        elif job.data > 1:
            collectives += job.batches * buckets
        if job.data > 1:
            collectives += buckets + 1
        return (
            events("step", "dataloader", "copy", "embedding", "optimizer", "sync")
            + job.batches * (job.layers * events("forward", "backward") + events("loss"))
            + collectives * events("all_reduce")
        )


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(
            f"{option} {value} is too small",
            why=f"At least {least} is needed.",
            hint=f"Write {option} {least}",
        )
