"""The configuration of a run: sizes, precision, and the bytes and FLOPs that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.errors import UsageError

ALLGATHER, MATMUL1, MATMUL2, REDUCE_SCATTER = "ALLGATHER", "matmul1", "matmul2", "REDUCE_SCATTER"
PARTS = (ALLGATHER, MATMUL1, MATMUL2, REDUCE_SCATTER)
COLLECTIVES = (ALLGATHER, REDUCE_SCATTER)

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
PRECISIONS = tuple(ITEM_BYTES)
GPU_SIZES = (4608, 9216)
# A few milliseconds per iteration on one core.
CPU_SIZES = (512, 1024)
# A CPU without bfloat16 instructions is about 300 times slower at bfloat16 than at float32.
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
    """Iterations before the timed ones; no figure includes them."""
    precision: str = "float32"
    chunks: int = 0
    """Chunks of the overlapped form; 0 runs only the synchronous form."""

    def check(self, ranks: int) -> None:
        """Raise UsageError if the sizes cannot be split over this many ranks."""
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
                why="--overlap needs equal chunks of a rank's S/W rows.",
                hint=f"Give --chunks {', '.join(map(str, fitting[:6]))}, or another -s."
                if fitting
                else "Give another -s.",
            )

    def part_bytes(self) -> int:
        """The size of one collective as nccl-tests defines it: the sum over the ranks' parts."""
        return self.sequence * self.hidden * ITEM_BYTES[self.precision]

    def part_flops(self, ranks: int) -> int:
        """One matmul on one rank: 2·M·N·K."""
        return 2 * self.sequence * self.hidden * (self.hidden // ranks)
