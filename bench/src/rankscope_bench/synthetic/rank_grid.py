"""The ranks of a job as a grid of pipeline stages, data- and tensor-parallel ranks, and its process groups."""

from __future__ import annotations

AXES = ("tp", "dp", "pp")
DESCRIPTIONS = {
    "world": "default_pg",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
}
"""As Megatron names its process groups."""


class RankGrid:
    """For plans with stages, data and tensor. Ranks count tensor first, then data, then stages."""

    stages: int
    data: int
    tensor: int

    @property
    def ranks(self) -> int:
        return self.stages * self.data * self.tensor

    def place(self, rank: int) -> tuple[int, int, int]:
        """(stage, data, tensor) of a rank."""
        rest, tensor = divmod(rank, self.tensor)
        stage, data = divmod(rest, self.data)
        return stage, data, tensor

    def rank_at(self, stage: int, data: int, tensor: int) -> int:
        return (stage * self.data + data) * self.tensor + tensor

    def group_ranks(self, axis: str, rank: int) -> tuple[int, ...]:
        """The ranks of this rank's group along an axis: tp, dp, pp or world."""
        stage, data, tensor = self.place(rank)
        if axis == "tp":
            return tuple(self.rank_at(stage, data, t) for t in range(self.tensor))
        if axis == "dp":
            return tuple(self.rank_at(stage, d, tensor) for d in range(self.data))
        if axis == "pp":
            return tuple(self.rank_at(s, data, tensor) for s in range(self.stages))
        return tuple(range(self.ranks))

    def group_name(self, axis: str, rank: int) -> str:
        """A number, as torch names groups; the world is 0."""
        if axis == "world":
            return "0"
        return str(1 + AXES.index(axis) * self.ranks + self.group_ranks(axis, rank)[0])
