"""The program of a training step: what a rank does in which order, and what waits for what.

`_order` has the passes through the layers; gradients are reduced bucket by bucket behind the last backward pass.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from rankscope.bench.synthetic.host import GAP_NS, Host, Work
from rankscope.bench.synthetic.recording import segment

_HICCUP_NS = 300_000
_MODEL_BYTES, _ACTIVATION_BYTES = 2 << 30, 1 << 30
_AFTER_STEP_NS = 600
_SHORT_KERNEL_NS = 1_500


def training_step(host: Host) -> Iterator[bool]:
    """One step, as the host goes through it. A `yield` waits until all launched work has ended."""
    job, faults, step = host.job, host.faults, host.step
    whole = host.play("step")
    host.now = start = int(whole.host()[0, -2])
    _allocate(host, _ACTIVATION_BYTES + _MODEL_BYTES * (step == 0))
    if random.Random(f"{job.seed}/hiccup/{host.rank}/{step}").random() < job.hiccup_chance:
        host.pause(_HICCUP_NS)
    host.play("dataloader", pause=host.noisy(job.data_wait_ns, "data") + faults.dataloader)
    host.pause(faults.checkpoint, "save_checkpoint" if faults.annotated else "")
    if not host.has("embedding"):
        host.pause(faults.host, "extra_work" if faults.annotated else "")
    needed = [host.play("copy", ns=job.batch_copy_ns, extra=faults.copy)]
    host.pause(faults.gc_before)
    if host.has("embedding"):
        needed = [host.play("embedding", needed, pause=faults.host, extra=faults.extra_kernel)]
    stage, data, tensor = job.place(host.rank)
    before = job.rank_at(stage - 1, data, tensor) if stage else -1
    following = job.rank_at(stage + 1, data, tensor) if stage + 1 < job.stages else -1
    gradients: list[Work] = []
    extra = 0 if host.has("embedding") else faults.extra_kernel
    for phase, batch in _order(job.stages, job.batches):
        source, target = (before, following) if phase == "forward" else (following, before)
        if phase == "backward" and extra:
            needed, extra = [host.play("extra", needed, ns=0, extra=extra)], 0
        if source >= 0:
            needed = [host.transfer("recv", source, f"{phase} {batch}")]
        if phase == "forward":
            needed = _forward(host, batch, needed)
        else:
            needed = _backward(host, batch, needed, gradients)
        if target >= 0:
            host.transfer("send", target, f"{phase} {batch}", needed)
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


def _order(stages: int, batches: int) -> list[tuple[str, int]]:
    """The passes of a step. A pipeline does all forward passes first (GPipe)."""
    forward, backward = ([(phase, batch) for batch in range(batches)] for phase in ("forward", "backward"))
    if stages > 1:
        return forward + backward
    return [single for both in zip(forward, backward, strict=True) for single in both]


def _forward(host: Host, batch: int, needed: list[Work]) -> list[Work]:
    """Sharded weights: two gathers are in flight, but all ranks wait for the first: a late rank is visible there
    once, and afterwards the ranks run in step. Tensor-parallel layers wait for each other's sums."""
    job = host.job
    gathers: list[Work] = []
    layer = batch * job.layers
    for number, layers in enumerate(job.buckets):
        needed = [_layers(host, "forward", layer, layers, [*needed, *gathers[max(number - 2, 0) :][:1]])]
        label, busy = f"forward {number} {batch}", _busy_ns(host, "forward", layers)
        if job.tensor > 1:
            kind = ("all_gather", "reduce_scatter")[number % 2] if job.sharded else "all_reduce"
            needed = host.collective(kind, "tp", label, needed, busy * 15 // 100) or needed
        elif job.sharded:
            gathers += host.collective("all_gather", job.data_axis, label, needed, busy * 60 // 100)
        layer += layers
    if host.has("loss"):
        needed = [host.play("loss", [*needed, *gathers[max(len(job.buckets) - 2, 0) :][:1]])]
    return needed


def _backward(host: Host, batch: int, needed: list[Work], gradients: list[Work]) -> list[Work]:
    job = host.job
    scatters = job.sharded and job.tensor == 1
    layer = (batch + 1) * job.layers - 1
    for number, layers in reversed(list(enumerate(job.buckets))):
        needed = [_layers(host, "backward", layer, layers, needed)]
        busy = _busy_ns(host, "backward", layers)
        if job.tensor > 1:
            kind = ("all_gather", "reduce_scatter")[number % 2] if job.sharded else "all_reduce"
            label = f"backward {number} {batch}"
            needed = host.collective(kind, "tp", label, needed, busy * 15 // 100, on_autograd=True) or needed
        if batch + 1 == job.batches:
            gradients += host.collective(
                "reduce_scatter" if scatters else "all_reduce",
                job.data_axis,
                f"bucket {number}",
                needed,
                busy * 55 // 100,
                on_autograd=True,
            )
            if host.faults.no_overlap:
                needed = gradients[-1:]
        layer -= layers
    return needed


def _layers(host: Host, phase: str, layer: int, layers: int, needed: list[Work]) -> Work:
    """A pass through some layers, up or down from `layer`; each micro-batch counts its own."""
    job = host.job
    if job.model != "plain":
        return host.play(phase, needed, blocks=layers, layer=layer, upward=1 if phase == "forward" else -1)
    ns = job.forward_ns * (1 if phase == "forward" else 2) // job.kernels
    work = host.play(phase, needed, blocks=job.kernels, ns=ns)
    if host.faults.short_kernels:
        work = host.play("short", [work], blocks=host.faults.short_kernels, ns=_SHORT_KERNEL_NS)
    return work


def _busy_ns(host: Host, phase: str, layers: int) -> int:
    """How long the GPU works on some recorded layers."""
    ns = segment(f"{host.job.model}.{phase}").gpu_ns
    return layers * int(ns.sum() + GAP_NS * len(ns))


def _allocate(host: Host, change: int) -> None:
    """Jobs that leak also record their allocations."""
    if host.faults.watches_memory:
        host.play("memory", nbytes=change)
