"""Degrees and batch sizes of a plan in torchtitan's own words, for recipes and job files alike."""

from itertools import accumulate

from costmodels.plans import Layout

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
"""Classes of torch.distributed.pipelining.schedules by schedule of the plan."""


def parallelism(layout: Layout) -> dict[str, object]:
    """Return the fields of torchtitan's ParallelismConfig that the plan decides.

    FSDP shards over the context-parallel ranks too, so its degree beside them is the rest of a
    ZeRO group. ZeRO-3 frees gathered weights after the forward pass, ZeRO-2 keeps them until after
    the backward; in a pipeline PyTorch reduces gradients once a step, which is ZeRO-1.
    """
    shard = layout.dp_shard // layout.cp if layout.zero else 1
    fields: dict[str, object] = {
        "data_parallel_replicate_degree": layout.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if layout.zero == 3 else "never",
        "tensor_parallel_degree": layout.tp,
        "enable_sequence_parallel": layout.sp and layout.tp > 1,
        "context_parallel_degree": layout.cp,
        "expert_parallel_degree": layout.ep,
        "pipeline_parallel_degree": layout.pp,
    }
    return fields | (pipeline(layout, "lm_head") if layout.pp > 1 else {})


def compiler(layout: Layout) -> dict[str, object]:
    """Return the fields of torchtitan's CompileConfig that the plan decides, {} where it is off.

    Asynchronous tensor parallelism is a pass of the compiler.
    """
    if not layout.tp_overlap:
        return {}
    return {"enable": True, "enable_async_tensor_parallel": True}


def pipeline(layout: Layout, lm_head: str) -> dict[str, object]:
    """Return the pipeline's fields; `lm_head` is the name of the head's module."""
    return {
        "pipeline_parallel_schedule": SCHEDULES[layout.schedule],
        "pipeline_parallel_microbatch_size": layout.mbs,
        **_stages(layout.stage_layers, lm_head),
    }


def _stages(counts: tuple[int, ...], lm_head: str) -> dict[str, object]:
    """Return how the layers go to the stages, in the plainest words that say it."""
    layers, n_stages = sum(counts), len(counts)
    for first, last in ((0, 0), (1, 1), (1, 0), (0, 1)):
        maximum = -(-(layers + first + last) // n_stages)
        if even_stages(layers, maximum, first, last) == counts:
            return {
                "pipeline_parallel_layers_per_stage": maximum,
                "pipeline_parallel_first_stage_less_layers": first,
                "pipeline_parallel_last_stage_less_layers": last,
            }
    ends = list(accumulate(counts))
    parts = [
        [f"layers.{i}" for i in range(end - n, end)] for n, end in zip(counts, ends, strict=True)
    ]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", lm_head]
    return {"module_fqns_per_model_part": parts}


def even_stages(layers: int, per_stage: int, first: int, last: int) -> tuple[int, ...]:
    """Return torchtitan's own split into stages of at most `per_stage` units, () if it has none.

    A unit is a layer; embedding and head weigh `first` and `last` layers. The first stages take
    the rest (torchtitan/distributed/pipeline_parallel.py, _generate_llm_fqn_per_model_part).

    >>> even_stages(30, 8, 1, 1), even_stages(32, 9, 1, 1)
    ((7, 8, 8, 7), (8, 9, 8, 7))
    """
    n_stages = -(-(layers + first + last) // per_stage)
    share, rest = divmod(layers + first + last, n_stages)
    if n_stages == 1 or max(first, last) > share:
        return ()
    counts = [share + (i < rest) for i in range(n_stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def batch(layout: Layout) -> dict[str, object]:
    """Return torchtitan's batch sizes: of one rank, of a step.

    A pipeline takes all its micro-batches as one local batch; otherwise they are accumulated.
    """
    local = layout.mbs * layout.n_micro if layout.pp > 1 else layout.mbs
    return {"local_batch_size": local, "global_batch_size": layout.gbs}
