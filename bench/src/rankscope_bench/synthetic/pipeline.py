"""Pipeline schedules: in which order a stage runs its passes, and which messages go together.

"gpipe" runs all forward passes, then all backward passes. "1f1b" alternates once the pipeline is full. "interleaved" is
1f1b with several chunks of layers on each stage (virtual stages); a message of the last stage goes to the first stage's
next chunk. Orders and messages are those of Megatron-LM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rankscope_bench.synthetic.job import Job


class Pass(NamedTuple):
    """A micro-batch goes through the layers of a chunk."""

    phase: str
    """forward or backward."""
    batch: int
    chunk: int = 0


class Block(NamedTuple):
    """Passes without a message between them."""

    passes: tuple[Pass, ...]
    joined: bool = False
    """Its results are sent together with the receives of the next block."""


class Message(NamedTuple):
    """One end of a transfer between two stages."""

    kind: str
    """send or recv."""
    stage: int
    """At the other end."""
    label: str


def blocks(job: Job, stage: int) -> list[Block]:
    """What a stage does in a step, in order."""
    batches = job.batches
    forward = [Pass("forward", batch) for batch in range(batches)]
    backward = [Pass("backward", batch) for batch in range(batches)]
    if job.stages == 1:
        return [Block((single,)) for both in zip(forward, backward, strict=True) for single in both]
    if job.schedule == "gpipe":
        return [Block((single,)) for single in forward + backward]
    if job.schedule == "interleaved":
        return _interleaved(job, stage)
    ahead = min(job.stages - stage - 1, batches)
    steady = [single for both in zip(forward[ahead:], backward, strict=False) for single in both]
    return [
        *(Block((single,)) for single in forward[:ahead]),
        *(Block((single,), joined=number + 1 < len(steady)) for number, single in enumerate(steady)),
        *(Block((single,)) for single in backward[batches - ahead :]),
    ]


def _interleaved(job: Job, stage: int) -> list[Block]:
    """Groups of as many micro-batches as stages go through one chunk after the other."""
    group = job.stages * job.chunks
    total = job.batches * job.chunks

    def single(phase: str, number: int) -> Pass:
        chunk = number % group // job.stages
        batch = number // group * job.stages + number % job.stages
        return Pass(phase, batch, chunk if phase == "forward" else job.chunks - 1 - chunk)

    forward = [single("forward", number) for number in range(total)]
    backward = [single("backward", number) for number in range(total)]
    ahead = min(2 * (job.stages - stage - 1) + (job.chunks - 1) * job.stages, total)
    together = [
        *((one_pass,) for one_pass in forward[:ahead]),
        *zip(forward[ahead:], backward, strict=False),
        *((one_pass,) for one_pass in backward[total - ahead :]),
    ]
    return [Block(passes, joined=True) for passes in together]


def messages(job: Job, stage: int, kind: str, block: Block | None) -> list[Message]:
    """What a block sends or receives."""
    listed = []
    for phase, batch, chunk in block.passes if block else ():
        towards = 1 if (phase == "forward") == (kind == "send") else -1
        other = chunk * job.stages + stage + towards
        if 0 <= other < job.stages * job.chunks:
            # By the chunk of the stage that computed it.
            source = chunk if kind == "send" else other // job.stages
            label = f"{phase} {batch}" if job.chunks == 1 else f"{phase} {batch} {source}"
            listed.append(Message(kind, other % job.stages, label))
    return listed
