"""The program of a training step: what a rank does in which order, and what waits for what.

pipeline.py has the order of the passes through the layers. Gradients are reduced bucket by bucket behind the last
backward pass.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from rankscope_bench.synthetic.host import GAP_NS, Host, Work, drawn, measured_noise
from rankscope_bench.synthetic.pipeline import Pass, blocks, messages
from rankscope_bench.synthetic.recording import segment

_HICCUP_NS = 300_000
_MODEL_BYTES, _ACTIVATION_BYTES = 2 << 30, 1 << 30
_AFTER_STEP_NS = 600


def training_step(host: Host) -> Iterator[bool]:
    """One step, as the host goes through it. A `yield` waits until all launched work has ended."""
    job, faults, step = host.job, host.faults, host.step
    whole = host.play("step")
    host.now = start = int(whole.host()[0, -2])
    _allocate(host, _ACTIVATION_BYTES + _MODEL_BYTES * (step == 0))
    host.pause(_hiccup_ns(host))
    host.play("dataloader", pause=host.noisy(job.data_wait_ns, "data") + faults.dataloader)
    host.pause(faults.checkpoint, "save_checkpoint" if faults.annotated else "")
    if not host.has("embedding"):
        host.pause(faults.host, "extra_work" if faults.annotated else "")
    needed = [host.play("copy", ns=job.batch_copy_ns, extra=faults.copy)]
    host.pause(faults.gc_before)
    if host.has("embedding"):
        needed = [host.play("embedding", needed, pause=faults.host, extra=faults.extra_kernel)]
    gradients: list[Work] = []
    needed = _passes(host, needed, gradients, 0 if host.has("embedding") else faults.extra_kernel)
    host.pause(faults.gc_after)
    if job.norm_ns:
        axis = job.data_axis if job.sharded else "world"
        gradients += host.collective("all_reduce", axis, "norm", [*gradients, *needed])
    if job.filler and job.filler[step]:
        host.play("filler", blocks=job.filler[step])
    if host.has("update"):
        needed = [host.play("update", [*gradients, *needed], blocks=2)]
    host.play("optimizer", [*gradients, *needed])
    _allocate(host, faults.leaked_bytes - _ACTIVATION_BYTES)
    sync = host.play("sync")
    yield True
    host.synchronized(sync)
    whole.pause = host.now + _AFTER_STEP_NS - int(whole.host()[0, -1])
    host.now += _AFTER_STEP_NS
    host.run.steps.append((start, host.now))


def _hiccup_ns(host: Host) -> int:
    job, chance = host.job, random.Random(f"{host.job.seed}/hiccup/{host.rank}/{host.step}")
    if job.measured:
        table = measured_noise()
        happens = bool(10_000 * chance.random() < table["hiccup_chance_per_10000"])
        return round(1_000 * drawn(table["hiccup_us"], chance.random())) * happens
    return _HICCUP_NS * (chance.random() < job.hiccup_chance)


def _passes(host: Host, needed: list[Work], gradients: list[Work], extra: int) -> list[Work]:
    """All passes of a step and the messages between the stages. `extra` is that of a kernel before the backward pass.

    As in Megatron, the next pass waits for the messages that go both ways; in GPipe it does not wait for the sends.
    """
    job = host.job
    stage = job.place(host.rank)[0]
    order = blocks(job, stage)
    waits = job.schedule != "gpipe"
    receives = messages(job, stage, "recv", order[0])
    for block, following in zip(order, [*order[1:], None], strict=True):
        if extra and block.passes[-1].phase == "backward":
            host.part = block.passes[-1]
            needed, extra = [host.play("extra", needed, ns=0, extra=extra)], 0
        needed = host.exchange(receives, needed if waits else ()) or needed
        for host.part in block.passes:
            needed = _layers(host, host.part, needed, gradients)
        host.part = None
        sends, receives = messages(job, stage, "send", block), messages(job, stage, "recv", following)
        if block.joined:
            sends, receives = sends + receives, []
        sent = host.exchange(sends, needed)
        needed = (waits and sent) or needed
    return needed


def _layers(host: Host, single: Pass, needed: list[Work], gradients: list[Work]) -> list[Work]:
    """A pass through all layers, with a collective after each bucket of them.

    Tensor-parallel layers wait for each other's sums. Sharded weights are gathered forward, two buckets ahead, but all
    ranks wait for the first: a late rank is visible there once, and afterwards the ranks run in step. Gradients are
    reduced while the next bucket is computed.
    """
    job, (phase, batch, chunk) = host.job, single
    forward, of_chunk = phase == "forward", f" {chunk}" if job.chunks > 1 else ""
    ns = segment(f"{job.model}.{phase}").gpu_ns
    layer_ns = int(ns.sum()) + GAP_NS * len(ns)
    gathers: list[Work] = []
    stage, data, _ = job.place(host.rank)
    length = job.length(host.step, batch, data)
    buckets = list(enumerate(job.buckets(job.layers_of(stage, chunk))))
    # Each micro-batch counts its own layers, so that forward and backward of the same find each other.
    layer = batch * job.layers if forward else (batch + 1) * job.layers - 1
    for number, layers in buckets if forward else reversed(buckets):
        needed = needed + gathers[max(number - 2, 0) :][:1]
        if job.model == "plain":
            if job.expert_ns and not forward:
                needed = _experts(host, single, number, needed)
            pass_ns = round(length * job.forward_ns) * (1 if forward else 2)
            needed = [
                host.play(
                    phase, needed, blocks=job.kernels, ns=pass_ns // job.kernels, on_autograd=not forward
                )
            ]
            if job.expert_ns and forward:
                needed = _experts(host, single, number, needed)
            if host.faults.short_kernels:
                needed = [host.play("short", needed, blocks=host.faults.short_kernels)]
        else:
            needed = [host.play(phase, needed, blocks=layers, layer=layer, upward=1 if forward else -1)]
            layer += layers if forward else -layers
        busy_ns = layers * layer_ns
        if job.tensor > 1:
            kind = ("all_gather", "reduce_scatter")[number % 2] if job.sharded else "all_reduce"
            label = f"{phase} {number} {batch}{of_chunk}"
            needed = host.collective(kind, "tp", label, needed, busy_ns * 15 // 100, not forward) or needed
        elif job.sharded and forward:
            label = f"{phase} {number} {batch}{of_chunk}"
            gathers += host.collective("all_gather", job.data_axis, label, needed, busy_ns * 60 // 100)
        if not forward and batch + 1 == job.batches:
            kind = "reduce_scatter" if job.sharded and job.tensor == 1 else "all_reduce"
            label = f"bucket {number}{of_chunk}"
            gradients += host.collective(kind, job.data_axis, label, needed, busy_ns * 55 // 100, True)
            if host.faults.no_overlap:
                needed = gradients[-1:]
    if forward and host.has("loss"):
        needed = [host.play("loss", needed + gathers[max(len(buckets) - 2, 0) :][:1])]
    return needed


def _experts(host: Host, single: Pass, layer: int, needed: list[Work]) -> list[Work]:
    """The tokens of a layer go to their experts, which compute as long as they have tokens."""
    job, (phase, batch, chunk) = host.job, single
    stage, data, _ = job.place(host.rank)
    label = f"experts {phase} {layer} {batch} {chunk}"
    needed = host.collective("all_to_all", "dp", label, needed) or needed
    pass_ns = job.expert_ns * (1 if phase == "forward" else 2)
    took = round(pass_ns * job.routed(stage, host.step)[data])
    return [host.play("expert", needed, ns=took, on_autograd=phase == "backward")]


def _allocate(host: Host, change: int) -> None:
    """Jobs that leak also record their allocations."""
    if host.faults.watches_memory:
        host.play("memory", nbytes=change)
