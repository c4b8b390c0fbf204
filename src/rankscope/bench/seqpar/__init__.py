"""The mini-benchmark: one tensor- and sequence-parallel block, repeated, on GPUs or CPUs.

    input (S/W,1,H) --ALLGATHER--> (S,1,H) --matmul1--> (S,1,H/W) --matmul2--> (S,1,H) --REDUCE_SCATTER--> (S/W,1,H)

Standard library and torch only (torch inside functions): it must run in an unmodified training image.
"""

from rankscope.bench.seqpar.config import ALLGATHER, MATMUL1, MATMUL2, PARTS, REDUCE_SCATTER, Config

__all__ = ["ALLGATHER", "MATMUL1", "MATMUL2", "PARTS", "REDUCE_SCATTER", "Config"]
