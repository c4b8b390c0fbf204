"""What is run: sizes, precision, and what follows from them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.errors import UsageError

ALLGATHER, MATMUL1, MATMUL2, REDUCE_SCATTER = "ALLGATHER", "matmul1", "matmul2", "REDUCE_SCATTER"
PARTS = (ALLGATHER, MATMUL1, MATMUL2, REDUCE_SCATTER)
COLLECTIVES = (ALLGATHER, REDUCE_SCATTER)

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
PRECISIONS = tuple(ITEM_BYTES)
GPU_SIZES = (4608, 9216)
# A few milliseconds an iteration on one core: large enough to measure, small enough for a laptop.
CPU_SIZES = (512, 1024)
# Without bfloat16 instructions a CPU is some 300 times slower at it than at float32.
SLOW_CPU_SIZES = (64, 256)
DEFAULT_CHUNKS = 4


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run of the benchmark."""

    sequence: int
    """S, the length of the whole sequence."""
    hidden: int
    """H, the width of the model; the inner width is the same."""
    iterations: int = 18
    warmup: int = 10
    """Iterations before the timed ones; they are not counted anywhere."""
    precision: str = "float32"
    chunks: int = 0
    """Pieces of the overlapped form; 0 runs the synchronous form alone."""

    def check(self, ranks: int) -> None:
        """Refuse what cannot be split over so many ranks."""
        for name, option, value in (("S", "-s", self.sequence), ("H", "-d", self.hidden)):
            if value % ranks:
                below, above = value // ranks * ranks, (value // ranks + 1) * ranks
                nearest = " or ".join(str(size) for size in (below, above) if size)
                raise UsageError(
                    f"{name} = {value} cannot be split over {ranks} ranks",
                    why=f"Every rank holds {name}/W of it, and {value}/{ranks} is not a whole number.",
                    hint=f"Give {option} {nearest}, or another number of ranks.",
                )
        rows = self.sequence // ranks
        if self.chunks and rows % self.chunks:
            fitting = [count for count in range(2, min(rows, 64) + 1) if rows % count == 0]
            raise UsageError(
                f"{rows} rows of a rank cannot be split into {self.chunks} chunks",
                why="--overlap works on equal pieces of a rank's S/W rows.",
                hint=f"Give --chunks {', '.join(map(str, fitting[:6]))}, or another -s."
                if fitting
                else "Give another -s.",
            )

    def part_bytes(self) -> int:
        """The size of one collective as nccl-tests counts it: what all ranks hold together."""
        return self.sequence * self.hidden * ITEM_BYTES[self.precision]

    def part_flops(self, ranks: int) -> int:
        """One matmul on one rank: 2·M·N·K."""
        return 2 * self.sequence * self.hidden * (self.hidden // ranks)


def busbw_factor(ranks: int) -> float:
    """From algbw to busbw for all_gather and reduce_scatter (nccl-tests): the share that crosses a link."""
    return (ranks - 1) / ranks
