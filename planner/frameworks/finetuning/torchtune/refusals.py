"""What recipes of torchtune cannot say of a plan that FSDP2 runs."""

from costmodels.tuning.records import NF4_BLOCK, SCALE_BLOCK
from planner.errors import PlannerError
from planner.frameworks.finetuning.torchtune.emitter import ATTENTION, MLP, OPTIMIZERS
from planner.frameworks.finetuning.tuned_plan import TunedPlan
from planner.frameworks.hf_config import hf_config

NF4_ELEMENTS = NF4_BLOCK * SCALE_BLOCK
"""Weights of a whole block of scales, which torchao's NF4 has in each tensor and shard."""
BASES = ("bf16", "nf4")
"""How torchtune holds frozen weights: NF4 is torchao's, with scales quantized again."""


def torchtune_refusals(plan: TunedPlan) -> list[str]:
    """Return why recipes of torchtune 0.6.1 cannot say a plan, a line each."""
    return [*_layout_refusals(plan), *_job_refusals(plan), *_target_refusals(plan)]


def _layout_refusals(plan: TunedPlan) -> list[str]:
    x = plan.layout
    faults = (
        (plan.on_deepspeed, "DeepSpeed: torchtune shards by FSDP2", "--framework fsdp2"),
        (
            x.n_devices > 1 and x.zero < 2 and not plan.on_deepspeed,
            f"zero {x.zero}: recipes of several devices shard the weights",
            "zero 3 or 2",
        ),
        (
            x.activation_offload and not plan.recomputes,
            "activations on the host without recompute",
            "recompute full",
        ),
    )
    return [f"{message}; closest: {fix}" for hit, message, fix in faults if hit]


def _job_refusals(plan: TunedPlan) -> list[str]:
    job, tuning = plan.job, plan.tuning
    wanted = ("bf16-true", "fp32") if tuning is None else ("bf16",)
    of_several = plan.layout.n_devices > 1
    faults = (
        (plan.compares_answers, "pairs of answers: only samples are written for torchtune", "TRL"),
        (
            job.precision not in wanted,
            f"precision {job.precision}: torchtune trains wholly in one format",
            " or ".join(f"precision {name}" for name in wanted),
        ),
        (
            job.optimizer not in OPTIMIZERS or (job.optimizer == "adam-8bit" and of_several),
            f"optimizer {job.optimizer}: not of a recipe on these devices",
            "optimizer adam",
        ),
        (
            tuning is not None and tuning.base not in BASES,
            f"base {tuning.base if tuning else ''}: torchtune has none",
            " or ".join(f"base {name}" for name in BASES),
        ),
        (
            tuning is not None and tuning.base == "nf4" and not _has_whole_blocks(plan),
            f"base nf4: each layer has a multiple of {NF4_ELEMENTS} weights on every rank",
            "base bf16, or fewer devices",
        ),
        (
            not _is_llama(plan),
            "model: files for torchtune state layers as those of Llama, with a head of their own",
            "TRL or axolotl",
        ),
    )
    return [f"{message}; closest: {fix}" for hit, message, fix in faults if hit]


def _has_whole_blocks(plan: TunedPlan) -> bool:
    """Tell whether scales of NF4 are quantized in whole blocks in the shard of every layer.

    Source: torchao 0.14.1, dtypes/nf4tensor.py (double_quantize_scalers, nf4_split).
    """
    x = plan.shape
    widths = (x.heads * x.head_dim, x.kv_heads * x.head_dim, x.ffn)
    unit = NF4_ELEMENTS * plan.layout.n_devices
    return all(x.hidden * width % unit == 0 for width in widths)


def _is_llama(plan: TunedPlan) -> bool:
    """Tell whether `torchtune.models.llama3.llama3` builds the layers of a model."""
    shape = plan.shape
    try:
        fields = hf_config(shape, plan.job, plan.request.details)
    except PlannerError:
        return False
    is_plain = fields["model_type"] == "llama" and not fields.get("tie_word_embeddings")
    has_biases = fields.get("attention_bias") or fields.get("mlp_bias")
    has_whole_heads = shape.head_dim * shape.heads == shape.hidden  # as its builder takes them
    return bool(is_plain and not has_biases and has_whole_heads)


def _target_refusals(plan: TunedPlan) -> list[str]:
    """Return what of the targets no recipe says: it adapts attention, and MLPs as a whole."""
    tuning = plan.tuning
    if tuning is None:
        return []
    of_mlps = set(MLP) & set(tuning.targets)
    faults = (
        (
            not set(ATTENTION) & set(tuning.targets),
            "targets without a layer of attention: torchtune adapts one of them at least",
            "targets q and v beside them",
        ),
        (
            bool(of_mlps) and of_mlps != set(MLP),
            f"targets {', '.join(sorted(of_mlps))}: torchtune adapts whole MLPs or none",
            f"targets {', '.join(MLP)}",
        ),
    )
    return [f"{message}; closest: {fix}" for hit, message, fix in faults if hit]
