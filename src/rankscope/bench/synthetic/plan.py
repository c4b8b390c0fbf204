"""The description of a synthetic run: its size, its planted faults, its clocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.bench.synthetic.defects import CATALOGUE, Defect, check_combination
from rankscope.bench.synthetic.step_work import CAUSES
from rankscope.errors import UsageError

# No real clock drifts more, and ns times ppb would overflow 64 bits within hours.
MAX_DRIFT_PPM = 1000.0
MAX_LEAVE_NOISE_NS = 1_000_000
_UNIX_START_NS = 1_794_701_458_600_000_000  # when true time is 0
_BASE_TIME_NS = 1_790_857_026_000_000_000


@dataclass(frozen=True)
class Straggler:
    """One rank that is late to the first collective of every step."""

    rank: int
    cause: str
    """compute (a kernel takes longer), host (the host pauses while the GPU is idle), copy (the copy of the batch
    takes longer) or dataloader (the wait for the batch takes longer)."""
    ns: int
    """By how much, in every step."""


@dataclass(frozen=True)
class Slower:
    """Kernels that take longer (or shorter) than they should, on every rank."""

    kernel: str
    """Part of their name."""
    factor: float
    """1.03 is 3 % slower, 0.5 twice as fast."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How a rank's time stamps relate to true time, which is ns from the run's start."""

    offset_ns: int = 0
    """How far it is ahead at true time 0."""
    drift_ppb: int = 0
    """How much it runs fast, in parts per billion."""
    base_time_ns: int = _BASE_TIME_NS
    """The file's baseTimeNanoseconds: unix ns = ts * 1000 + base."""

    @property
    def zero_ns(self) -> int:
        """The time stamp, in ns, of true time 0."""
        return _UNIX_START_NS - self.base_time_ns + self.offset_ns


@dataclass(frozen=True)
class Group:
    """A process group."""

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def stride(self) -> int:
        return self.ranks[1] - self.ranks[0] if len(self.ranks) > 1 else 1


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

    def groups(self, axis: str) -> list[Group]:
        """The process groups of one axis: world, tensor or data. Names are unique, as c10d's are."""
        everyone = tuple(range(self.ranks))
        width = self.tensor_parallel
        if axis == "world" or width is None:
            return [Group("0", "default_pg", everyone)]
        rows = self.ranks // width
        if axis == "tensor":
            return [Group(str(1 + i), "mesh_tp", everyone[i * width : (i + 1) * width]) for i in range(rows)]
        return [Group(str(1 + rows + i), "mesh_dp", everyone[i::width]) for i in range(width)]

    def groups_of(self, rank: int) -> list[Group]:
        """The process groups of a rank, the world first."""
        axes = ("world",) if self.tensor_parallel is None else ("world", "tensor", "data")
        return [group for axis in axes for group in self.groups(axis) if rank in group.ranks]

    def clocks(self) -> list[Clock]:
        """Random offsets and drifts. Rank 0 is the reference; one rank has the largest value."""
        offsets = self._spread(self.max_offset_ns, "offset")
        drifts = self._spread(round(self.max_drift_ppm * 1000), "drift")
        # As for ranks that start at different times: ts alone is not comparable across files.
        return [
            Clock(offset_ns=offset, drift_ppb=drift, base_time_ns=_BASE_TIME_NS + rank * 1_000_000_000)
            for rank, (offset, drift) in enumerate(zip(offsets, drifts, strict=True))
        ]

    def _spread(self, largest: int, what: str) -> Sequence[int]:
        source = random.Random(f"{self.seed} {what}")
        values = [0] + [source.randint(-largest, largest) for _ in range(self.ranks - 1)]
        if self.ranks > 1:
            peak = max(range(1, self.ranks), key=lambda rank: abs(values[rank]))
            values[peak] = largest if values[peak] >= 0 else -largest
        return values


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(
            f"{option} {value} is too small",
            why=f"At least {least} is needed.",
            hint=f"Write {option} {least}",
        )
