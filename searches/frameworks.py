"""Which framework can run which layout: the one place that says so.

Every rule answers with a sentence that names the part in the way and what comes closest, so that a
plan without a configuration still says what to change. `refusals` is the scalar form, which the
emitters use; `framework_mask` the array form, which restricts the search.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from costmodels import parameters
from costmodels.plans import ZERO_BUBBLE, Layout, ShapeTable
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stages import stage_layers
from searches.options import FRAMEWORKS

Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]

TITLES = {"megatron": "Megatron-LM", "deepspeed": "DeepSpeed"}


def padded_vocab(shape: ModelShape, tp: int) -> int:
    """Return the rows of the vocabulary matrices over all tp ranks."""
    return int(parameters.padded_vocab(shape, np.array([tp], dtype=np.int32))[0])


def vocab_divisor(shape: ModelShape, tp: int) -> int:
    """Return the --make-vocab-size-divisible-by that gives the plan's padding, 0 if none does.

    Megatron pads up to a multiple of divisor * tp (megatron/training/vocab_utils.py).
    """
    padded = padded_vocab(shape, tp)
    for divisor in (shape.vocab_multiple, 128, padded // tp):
        multiple = divisor * tp
        if multiple and -(-shape.vocab // multiple) * multiple == padded:
            return divisor
    return 0


def pipeline_partition(layout: Layout) -> str:
    """Return the PipelineModule `partition_method` that gives the plan's stages, or ''."""
    return partition_of(layout.stage_layers, layout.pp)


def partition_of(counts: tuple[int, ...], pp: int) -> str:
    """Return the `partition_method` that gives `counts` layers per stage, or ''.

    Counted over a list of embedding, blocks and head: `type:` balances the blocks alone,
    `uniform` cuts the whole list (deepspeed/runtime/pipe/module.py, _partition_layers).
    """
    if len(set(counts)) == 1:
        return "type:block"
    share, rest = divmod(sum(counts) + 2, pp)
    cut = [share + (i < rest) for i in range(pp)]
    cut[0] -= 1
    cut[-1] -= 1
    return "uniform" if tuple(cut) == counts else ""


def _common(layout: Layout, shape: ModelShape) -> Iterator[tuple[bool, str]]:
    tp, kv = layout.tp, shape.kv_heads
    yield (
        layout.dp_shard != layout.dp * layout.cp,
        f"ZeRO groups of {layout.dp_shard} that are replicated: not emitted in this version;"
        " closest: groups of all data-parallel ranks",
    )
    yield (
        (layout.ep > 1 or layout.etp > 1) and not shape.n_experts,
        "expert parallelism: the model is dense; closest: ep 1",
    )
    yield (
        layout.schedule == "gpipe",
        "schedule: GPipe is not offered, the pipeline schedules are 1F1B (and, in Megatron-LM,"
        " interleaved 1F1B); closest: schedule 1f1b",
    )
    yield (
        layout.schedule in ZERO_BUBBLE,
        f"schedule {layout.schedule}: Megatron-LM keeps the backward whole and DeepSpeed's"
        " PipelineModule runs 1F1B; torchtitan, which has ZBVZeroBubble and DualPipeV, is not"
        f" emitted in this version; closest: schedule"
        f" {'1f1b' if layout.vpp == 1 else 'interleaved'}",
    )
    yield (
        shape.heads % tp > 0 or shape.ffn % tp > 0,
        f"tensor parallelism: {shape.heads} heads and FFN width {shape.ffn} do not both divide"
        f" by tp {tp}; closest: a tp that divides both",
    )
    yield (
        kv % tp > 0 and tp % kv > 0,
        f"tensor parallelism: {kv} KV heads neither divide by tp {tp} nor divide it;"
        " closest: a tp that divides the KV heads or is a multiple of them",
    )


def _megatron(layout: Layout, shape: ModelShape) -> Iterator[tuple[bool, str]]:
    yield (
        layout.zero >= 2 and layout.pp > 1,
        f"ZeRO-{layout.zero} with a pipeline of {layout.pp}: sharded gradients need Megatron-FSDP,"
        " which is documented for TP, CP and EP and not for a pipeline; closest: zero 1, or pp 1",
    )
    yield (
        layout.vpp > 1 and (layout.n_micro < layout.pp or layout.n_micro % layout.pp > 0),
        f"interleaved schedule: {layout.n_micro} micro-batches are not a multiple of pp"
        f" {layout.pp}; closest: vpp 1, or a global batch that gives such a multiple",
    )
    yield (
        layout.rank_order != "tp-cp-ep-dp-pp"
        and (layout.rank_order != "tp-cp-ep-pp-dp" or layout.zero >= 2),
        f"rank order {layout.rank_order}: Megatron-LM offers tp-cp-ep-dp-pp, and without FSDP"
        " tp-cp-ep-pp-dp; closest: tp-cp-ep-dp-pp",
    )
    yield (
        vocab_divisor(shape, layout.tp) == 0,
        f"vocabulary: {padded_vocab(shape, layout.tp)} padded rows cannot be split over tp"
        f" {layout.tp}; closest: leave padded_vocab out",
    )


MEGATRON_FP8 = ("", "delayed", "tensorwise", "blockwise", "mxfp8")
"""Values of Megatron-LM's `--fp8-recipe`, and none."""


def _megatron_job(
    layout: Layout, shape: ModelShape, job: TrainingJob
) -> Iterator[tuple[bool, str]]:
    yield (
        layout.sp and job.seq_len % (layout.tp * layout.cp) > 0,
        f"sequence parallelism: {job.seq_len} tokens do not divide by tp {layout.tp}"
        + (f" x cp {layout.cp}" if layout.cp > 1 else "")
        + "; closest: sp off",
    )
    yield (
        job.precision == "fp16-grads",
        "precision fp16-grads: Megatron-LM keeps an fp32 copy of fp16 gradients;"
        " closest: precision fp16",
    )
    yield (
        job.recipe.fp8_recipe not in MEGATRON_FP8,
        f"precision {job.precision}: Megatron-LM scales fp8 delayed, tensorwise, blockwise or as"
        " mxfp8; closest: precision fp8-tensorwise",
    )
    yield (
        job.precision == "fp32" and shape.flash_attention,
        "precision fp32: flash attention has no fp32 kernel; closest: no flash attention, or bf16",
    )


def _deepspeed(layout: Layout, shape: ModelShape) -> Iterator[tuple[bool, str]]:
    tp, pp = layout.tp, layout.pp
    yield (
        layout.cp > 1 and layout.cp_comm != "a2a",
        f"context parallelism by {layout.cp_comm}: DeepSpeed has all-to-alls alone (Ulysses);"
        " closest: cp 1",
    )
    yield (
        layout.cp > 1 and layout.cp_comm == "a2a",
        "context parallelism by a2a: Ulysses is set up in the training script (sequence ranks,"
        " wrapped attention and data loader), which no configuration says; closest: cp 1",
    )
    yield (
        layout.sp and tp > 1,
        "sequence parallelism: DeepSpeed's AutoTP has no Megatron-style sequence parallelism;"
        " closest: sp off",
    )
    yield (
        tp > 1 and pp > 1,
        f"tp {tp} with pp {pp}: DeepSpeed's pipeline brings no tensor parallelism of its own;"
        " closest: tp 1 or pp 1",
    )
    yield (
        tp > shape.kv_heads,
        (
            f"tp {tp} over {shape.kv_heads} KV heads: AutoTP leaves the other ranks idle in"
            f" attention; closest: tp {shape.kv_heads}"
        ),
    )
    yield (
        layout.rank_order != "tp-cp-ep-dp-pp",
        f"rank order {layout.rank_order}: no setting in DeepSpeed; closest: tp-cp-ep-dp-pp",
    )
    yield from _deepspeed_pipeline(layout)


def _deepspeed_pipeline(layout: Layout) -> Iterator[tuple[bool, str]]:
    pp, counts, k = layout.pp, layout.stage_layers, layout.recompute_layers
    yield (
        layout.vpp > 1,
        f"interleaved schedule: DeepSpeed's pipeline has one stage per rank, not {layout.vpp};"
        " closest: vpp 1",
    )
    yield (
        layout.zero >= 2 and pp > 1,
        f"ZeRO-{layout.zero} with a pipeline of {pp}: refused by DeepSpeed's PipelineEngine;"
        " closest: zero 1, or pp 1",
    )
    yield (
        pp > 1 and layout.vpp == 1 and not pipeline_partition(layout),
        f"stages of {min(counts)} to {max(counts)} layers: no"
        " partition_method of PipelineModule gives them; closest: an even split",
    )
    yield (
        pp > 1 and layout.recompute == "full" and 0 < k < max(counts),
        f"recompute of {k} layers a stage: PipelineModule recomputes all"
        " layers or none; closest: all of them",
    )


def _deepspeed_job(
    layout: Layout, shape: ModelShape, job: TrainingJob
) -> Iterator[tuple[bool, str]]:
    low = job.precision in ("bf16", "fp16")
    yield (
        bool(job.recipe.fp8_recipe),
        f"precision {job.precision}: DeepSpeed has no fp8 training of its own; closest: precision"
        " bf16",
    )
    yield (
        low and layout.zero == 0,
        f"precision {job.precision} with ZeRO-0: DeepSpeed has no fp32 gradients then;"
        f" closest: zero 1, or precision {job.precision}-grads",
    )
    yield (
        job.precision == "bf16-grads" and layout.zero == 0 and layout.pp > 1,
        "bf16 with ZeRO-0 in a pipeline: DeepSpeed shards the optimizer there; closest: zero 1",
    )


def refusals(
    target: str, layout: Layout, shape: ModelShape, job: TrainingJob | None = None
) -> tuple[str, ...]:
    """Return every reason why `target` cannot run the layout; empty when it can.

    Without `job` the rules about precision and sequence length are left out.
    """
    by_layout = {"megatron": _megatron, "deepspeed": _deepspeed}[target]
    by_job = {"megatron": _megatron_job, "deepspeed": _deepspeed_job}[target]
    rules = [*_common(layout, shape), *by_layout(layout, shape)]
    if job is not None:
        rules += by_job(layout, shape, job)
    return tuple(text for hit, text in rules if hit)


def framework_mask(
    framework: str, problem: Problem, shapes: ShapeTable, recompute: Ints, recompute_layers: Ints
) -> Bools:
    """Return which plans a framework can run, `(n_shapes, sp, zero, recompute options)`.

    The array form of `refusals` (tests compare the two); whether the micro-batches fill the
    interleaved schedule is a rule of its own (BAT002).
    """
    column = (slice(None), None, None, None)
    tp, pp, vpp = (x[column] for x in (shapes.tp, shapes.pp, shapes.vpp))
    sp, zero = np.arange(2)[None, :, None, None], np.arange(4)[None, None, :, None]
    shape, precision = problem.shape, problem.job.precision
    one_stage = (zero < 2) | (pp == 1)
    full = (len(shapes), 2, 4, len(recompute))
    dense = (shapes.ep == 1) & (shapes.etp == 1) | (shape.n_experts > 0)
    if framework == "megatron":
        divides = np.array([vocab_divisor(shape, int(t)) > 0 for t in shapes.tp], dtype=bool)
        refused = precision == "fp16-grads" or (precision == "fp32" and shape.flash_attention)
        refused = refused or problem.job.recipe.fp8_recipe not in MEGATRON_FP8
        runs = one_stage & (divides & dense)[column] & (not refused)
        return np.broadcast_to(runs, full)
    low, grads = precision in ("bf16", "fp16"), precision == "bf16-grads"
    kind, k = recompute[None, None, None, :], recompute_layers[None, None, None, :]
    longest, cut = _stages(problem, shapes)
    all_or_none = (pp == 1) | (kind != 2) | (k == 0) | (k >= longest[column])
    alone = ((tp == 1) | ((pp == 1) & (sp == 0))) & (tp <= shape.kv_heads) & (vpp == 1)
    batches = (zero > 0) | ((not low) & ((pp == 1) | (not grads)))
    stages = ((pp == 1) | cut[column]) & ((shapes.cp == 1) & dense)[column]
    stages = stages & (not problem.job.recipe.fp8_recipe)
    return np.broadcast_to(one_stage & alone & all_or_none & batches & stages, full)


def _stages(problem: Problem, shapes: ShapeTable) -> tuple[Ints, Bools]:
    """Return the largest stage of each shape, and whether DeepSpeed can cut its stages so."""
    counts = [
        stage_layers(problem.shape.layers, int(p), int(v), shapes.splits[int(s)])
        for p, v, s in zip(shapes.pp, shapes.vpp, shapes.split, strict=True)
    ]
    longest = np.array([max(c) for c in counts], dtype=np.int32)
    cut = [
        int(v) == 1 and bool(partition_of(c, len(c)))
        for c, v in zip(counts, shapes.vpp, strict=True)
    ]
    return longest, np.array(cut, dtype=bool)


def runnable(
    framework: str, problem: Problem, shapes: ShapeTable, recompute: Ints, recompute_layers: Ints
) -> Bools:
    """Return the plans of a framework's space: `default` is what any framework here can run."""
    names = FRAMEWORKS if framework == "default" else (framework,)
    masks = [framework_mask(n, problem, shapes, recompute, recompute_layers) for n in names]
    return np.asarray(np.logical_or.reduce(masks))
