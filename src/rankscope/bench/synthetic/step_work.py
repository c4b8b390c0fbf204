"""The parts of a training step around the layers: data, loss, collectives, optimizer, synchronization."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.bench.synthetic import kernel_names
from rankscope.bench.synthetic import op_library as lib
from rankscope.bench.synthetic.kineto_text import Count, Piece, launch_shape, token
from rankscope.bench.synthetic.layer_work import BATCH, CONTEXT, HIDDEN, TOKENS
from rankscope.bench.synthetic.op_library import ABSENT, BFLOAT16, FLOAT, LONG, op, scalar, tensor
from rankscope.bench.synthetic.work_tree import Call, CollectiveLaunch, Frame, Memory, Node, Op, Pause

VOCABULARY = 32000
# Labels of the work that a plan makes longer on a straggler, one per cause.
DATALOADER, HOST, COPY, COMPUTE = "dataloader", "host", "copy", "compute"
CAUSES = (COMPUTE, HOST, COPY, DATALOADER)
DATALOADER_NS, HOST_GAP_NS, COPY_NS, COPY_BYTES = 2_000_000, 350_000, 60_000, 3_145_728
_BATCH_SLOT = 0


def _annotation(name: str, *children: Node, on_gpu: bool = False) -> Op:
    return Op(name=[name], category="user_annotation", children=children, on_gpu=on_gpu)


def prologue() -> list[Node]:
    """The beginning of a step: wait for data, copy it to the GPU, a host pause, look up the embeddings."""
    batch = tensor(LONG, BATCH, CONTEXT + 1)
    given = [batch, scalar(4), scalar(0), ABSENT, ABSENT, scalar(True), ABSENT]
    taken = Memory(nbytes=COPY_BYTES, slot=_BATCH_SLOT)
    to_gpu = lib.copy_(
        LONG,
        LONG,
        (BATCH, CONTEXT + 1),
        lib.memcpy("HtoD (Pinned -> Device)", COPY_BYTES, COPY_NS, label=COPY),
    )
    moved = op("aten::_to_copy", given, lib.empty_strided((BATCH, CONTEXT + 1), taken), to_gpu)
    gathered = op(
        "aten::index_select",
        [tensor(FLOAT, VOCABULARY, HIDDEN), scalar(0), tensor(LONG, TOKENS)],
        lib.kernel(kernel_names.EMBEDDING, 45_000, 32, 8192, 256, label=COMPUTE),
    )
    wait = _annotation(
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        Pause(ns=DATALOADER_NS, label=DATALOADER),
    )
    step = Op(
        name=["ProfilerStep#", Count("step")], category="user_annotation", lasts_for_step=True, on_gpu=True
    )
    return [
        Frame(name=["train.py(88): train_step"], lasts_for_step=True),
        step,
        Frame(name=["torch/utils/data/dataloader.py(732): __next__"], children=(wait,)),
        op("aten::to", [*given[:-1], scalar(False), ABSENT], moved),
        Pause(ns=HOST_GAP_NS, label=HOST),
        Op(
            name=["aten::embedding"],
            inputs=lib.inputs(
                tensor(FLOAT, VOCABULARY, HIDDEN), batch, scalar(-1), scalar(False), scalar(False)
            ),
            children=(
                lib.view((BATCH, CONTEXT), (TOKENS,)),
                gathered,
                lib.view((TOKENS, HIDDEN), (BATCH, CONTEXT, HIDDEN)),
            ),
        ),
    ]


def loss() -> list[Node]:
    logits, target = tensor(BFLOAT16, TOKENS, VOCABULARY), tensor(LONG, TOKENS)
    softmax = op(
        "aten::_log_softmax",
        [logits, scalar(1), scalar(False)],
        lib.kernel(kernel_names.LOG_SOFTMAX, 180_000, 32, 8192, 1024, shared=128),
    )
    reduced = op(
        "aten::nll_loss_forward",
        [logits, target, ABSENT, scalar(1), scalar(-100)],
        lib.kernel(kernel_names.NLL_LOSS, 9_000, 32, 1, 1024, shared=8),
    )
    return [
        op(
            "aten::cross_entropy_loss",
            [logits, target, ABSENT, scalar(1), scalar(-100), scalar("0.")],
            op("aten::log_softmax", [logits, scalar(1), ABSENT], softmax),
            op("aten::nll_loss_nd", [logits, target, ABSENT, scalar(1), scalar(-100)], reduced),
        )
    ]


def epilogue() -> list[Node]:
    """The optimizer, and loss.item(), which waits until the GPU is idle."""
    lists = [lib.Input("TensorList", "[]", "[]", "")]
    adam = [lib.kernel(kernel_names.ADAM, 160_000, 60, 320, 512) for _ in range(3)]
    optimizer = _annotation(
        "Optimizer.step#AdamW.step",
        op(
            "aten::_foreach_add_",
            [*lists, scalar(1)],
            lib.kernel(kernel_names.FOREACH_ADD, 6_000, 30, 320, 512),
        ),
        op("aten::_fused_adamw_", [*lists * 5, *[ABSENT] * 4, scalar("0.01")], *adam),
        on_gpu=True,
    )
    zeroed = [
        op("aten::zero_", [tensor(FLOAT, HIDDEN, HIDDEN)], lib.memset(4 * HIDDEN * HIDDEN, 2_100))
        for _ in range(2)
    ]
    value = tensor(FLOAT)
    item = op(
        "aten::_local_scalar_dense",
        [value],
        lib.memcpy("DtoH (Device -> Pageable)", 4, 1_300),
        Call(name="cudaStreamSynchronize", cbid=131, waits_for_gpu=True),
    )
    return [
        Frame(name=["torch/optim/optimizer.py(510): wrapper"], children=(optimizer,)),
        _annotation("Optimizer.zero_grad#AdamW.zero_grad", *zeroed),
        Memory(nbytes=-COPY_BYTES, slot=_BATCH_SLOT),
        Frame(name=["train.py(97): log"], children=(op("aten::item", [value], item),)),
    ]


def filler() -> list[Node]:
    """One op, repeated to reach the requested number of events."""
    return [op("aten::detach", [tensor(FLOAT, HIDDEN)])]


@dataclass(frozen=True, kw_only=True)
class CollectiveKind:
    """The names of one kind of collective in c10d, in NCCL and in the metadata."""

    kind: str
    op: str
    metadata_name: str
    annotation: str
    kernel: str
    dtype: str
    tensor_type: str
    element_bytes: int


ALL_GATHER = CollectiveKind(
    kind="all_gather",
    op="c10d::_allgather_base_",
    metadata_name="_allgather_base",
    annotation="nccl:_all_gather_base",
    kernel=kernel_names.ALL_GATHER,
    dtype="BFloat16",
    tensor_type=BFLOAT16,
    element_bytes=2,
)
REDUCE_SCATTER = CollectiveKind(
    kind="reduce_scatter",
    op="c10d::_reduce_scatter_base_",
    metadata_name="_reduce_scatter_base",
    annotation="nccl:_reduce_scatter_base",
    kernel=kernel_names.REDUCE_SCATTER,
    dtype="BFloat16",
    tensor_type=BFLOAT16,
    element_bytes=2,
)
ALL_REDUCE = CollectiveKind(
    kind="all_reduce",
    op="c10d::allreduce_",
    metadata_name="allreduce",
    annotation="nccl:all_reduce",
    kernel=kernel_names.ALL_REDUCE,
    dtype="Float",
    tensor_type=FLOAT,
    element_bytes=4,
)


def _flat_input(kind: CollectiveKind, scalars: int) -> tuple[Piece, ...]:
    """The inputs: one flat tensor of the collective's length, then scalars."""
    values, types = ', ""' * scalars, ', "Scalar"' * scalars
    empty = ", []" * scalars
    return (
        f'"Concrete Inputs": [""{values}], "Input type": ["{kind.tensor_type}"{types}], '
        f'"Input Strides": [[1]{empty}], "Input Dims": [[',
        Count("in_nelems"),
        f"]{empty}]",
    )


def _metadata(kind: CollectiveKind) -> tuple[Piece, ...]:
    return (
        f'"Collective name": "{kind.metadata_name}", '
        f'"Process Group Description": "{token("group_description")}", "dtype": "{kind.dtype}", '
        f'"Rank": {token("group_rank")}, "Out msg nelems": ',
        Count("out_nelems"),
        f', "Process Group Name": "{token("group_name")}", "Global rank stride": {token("group_stride")}, '
        f'"Out split size": "[]", "In split size": "[]", "Process Group Ranks": "{token("group_ranks")}", '
        f'"Group size": {token("group_size")}, "Global rank start": {token("group_start")}, "Seq": ',
        Count("collective_sequence"),
        ', "In msg nelems": ',
        Count("in_nelems"),
        ", ",
        *_flat_input(kind, 3),
    )


def collective(kind: CollectiveKind) -> list[Node]:
    """A collective as the host sees it: c10d's op, its record with the metadata, NCCL's launch."""
    launch = CollectiveLaunch(
        name=kind.kernel, shape=launch_shape(96, 87568, (16, 1, 1), (544, 1, 1), lib.SMS)
    )
    started = Op(
        name=[kind.annotation],
        category="user_annotation",
        inputs=_flat_input(kind, 0),
        children=(launch,),
        on_gpu=True,
    )
    record = Op(
        name=["record_param_comms"],
        inputs=_metadata(kind),
        children=(
            Call(name="cudaEventRecord", cbid=135),
            Call(name="cudaStreamWaitEvent", cbid=147),
            started,
        ),
    )
    return [Op(name=[kind.op], inputs=_flat_input(kind, 4), children=(record,))]
