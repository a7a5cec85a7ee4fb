"""What files of a tool cannot say of a plan that its engine runs."""

from costmodels.tuning.targets import EXPERTS, FUSED
from planner.frameworks.finetuning.adapter_names import MOVED, MOVED_TO_EXPERTS
from planner.frameworks.finetuning.torchtune.refusals import torchtune_refusals
from planner.frameworks.finetuning.trainer_settings import attention_name, is_reentrant
from planner.frameworks.finetuning.tuned_plan import TunedPlan
from planner.frameworks.hf_config import model_type


def tool_refusals(plan: TunedPlan) -> tuple[str, ...]:
    """Return why files of a tool cannot say a plan that its engine runs, a line each."""
    has_pairs = plan.compares_answers and not plan.tuner.has_own_loop
    of_pairs = _preference_refusals(plan) if has_pairs else []
    return (
        *_layout_refusals(plan),
        *(torchtune_refusals(plan) if plan.tuner.name == "torchtune" else ()),
        *_model_refusals(plan),
        *of_pairs,
        *_adapter_refusals(plan),
    )


def _layout_refusals(plan: TunedPlan) -> list[str]:
    x, title = plan.layout, plan.tuner.title
    whole = plan.recomputes and x.recompute_layers < max(x.stage_layers)
    faults = (
        (x.pp > 1, f"pipeline of {x.pp}: {title} has none", "pp 1"),
        (x.tp > 1, f"tp {x.tp}: files for {title} state no tensor parallelism", "tp 1"),
        (x.cp > 1, f"cp {x.cp}: files for {title} state no context parallelism", "cp 1"),
        (x.ep > 1, f"ep {x.ep}: {title} has no expert parallelism", "ep 1"),
        (
            x.recompute == "selective" or whole,
            f"recompute {x.recompute} of {x.recompute_layers} layers: the Trainer recomputes all"
            " layers or none",
            "all of them",
        ),
        (
            x.activation_offload and not plan.is_sharded,
            "activations on the host: of FSDP2 alone",
            "activation_offload off, or zero 3",
        ),
        (
            plan.tuner.name == "axolotl" and plan.is_sharded and x.zero == 2,
            "zero 2 on FSDP2: axolotl cannot switch fsdp_reshard_after_forward off",
            "zero 3, or a plan searched for --framework deepspeed",
        ),
        (
            plan.tuner.name in ("axolotl", "swift") and x.activation_offload,
            f"activations on the host: {title} has no key for FSDP2's",
            "activation_offload off",
        ),
        (
            plan.is_sharded and x.dp_shard < x.dp and not plan.tuner.has_shard_groups,
            f"shards over {x.dp_shard} of {x.dp} ranks: {title} shards over all",
            "dp_shard of all ranks",
        ),
    )
    return [f"{message}; closest: {fix}" for hit, message, fix in faults if hit]


def _model_refusals(plan: TunedPlan) -> list[str]:
    shape, title, data = plan.shape, plan.tuner.title, plan.job.data
    attention = attention_name(plan)
    faults = (
        (
            plan.tuner.name == "llama-factory" and attention == "flex_attention",
            "layers with a window: LLaMA-Factory has no flex_attention, which skips hidden keys",
            "TRL or axolotl",
        ),
        (
            shape.vision is not None or shape.encoder is not None,
            f"model: files for {title} state decoders of text alone",
            "the layout of this plan in your own script",
        ),
        (
            plan.job.recipe.is_narrow and not plan.tuner.has_own_loop,
            f"precision {plan.job.precision}: the engines of {title} keep a copy in fp32",
            "precision bf16, or torchtune",
        ),
        (
            data is not None and data.packing not in plan.tuner.packings,
            f"packing {data.packing if data else ''}: {title} has no such packs",
            " or ".join(plan.tuner.packings),
        ),
    )
    return [f"{message}; closest: {fix}" for hit, message, fix in faults if hit]


def _preference_refusals(plan: TunedPlan) -> list[str]:
    """Return what a tool cannot say of a job that compares answers (DPO).

    axolotl 0.19.0 keeps the reference that it loads for all weights (train.py,
    setup_reference_model), and refuses quantized ones on FSDP2 and reentrant recomputation of
    4-bit ones (utils/schemas/validation.py). It and LLaMA-Factory 0.9.5 leave dropout off, as
    TRL's trainer does by default.
    """
    job, tuning, tuner = plan.job, plan.tuning, plan.tuner
    is_axolotl = tuner.name == "axolotl"
    is_quantized = tuning is not None and tuning.storage.is_quantized
    before = job.has_precomputed_reference
    faults = (
        (
            not job.has_reference and not before,
            "reference none: DPO compares with one",
            "reference memory or precomputed",
        ),
        (
            before and not tuner.has_precomputed_reference,
            f"reference precomputed: {tuner.title} computes it beside the model",
            "reference memory, or TRL",
        ),
        (
            before and is_axolotl and tuning is None,
            "reference precomputed: axolotl keeps a reference of all weights in memory",
            "reference memory, or TRL",
        ),
        (
            job.data is not None and job.data.packing != "none",
            "packs: pairs of answers are not packed",
            "packing none",
        ),
        (
            tuning is not None and tuning.dropout > 0 and not tuner.keeps_dropout_of_pairs,
            f"dropout of adapters: {tuner.title} has it off where answers are compared",
            "dropout 0, or TRL",
        ),
        (
            is_axolotl and is_quantized and plan.is_sharded,
            "quantized weights in shards of FSDP2: axolotl refuses them beside preferences",
            "zero 0, or a plan searched for --framework deepspeed",
        ),
        (
            is_axolotl and is_quantized and plan.recomputes and is_reentrant(plan),
            "recompute in ZeRO 3 beside 4-bit weights: axolotl refuses it beside preferences",
            "recompute none, or zero 2",
        ),
    )
    return [f"{message}; closest: {fix}" for hit, message, fix in faults if hit]


def _adapter_refusals(plan: TunedPlan) -> list[str]:
    tuning, title = plan.tuning, plan.tuner.title
    if tuning is None or plan.tuner.has_own_loop:
        return []
    fused = [name for name in FUSED if name in tuning.targets]
    parts = ", ".join(part for name in fused for part in FUSED[name])
    has_experts = EXPERTS in tuning.targets
    kind = model_type(plan.shape, plan.job, plan.request.details)
    moved = [name for name in MOVED if name in tuning.targets and kind in MOVED_TO_EXPERTS]
    kept = [name for name in tuning.targets if name not in moved]
    faults = (
        (
            bool(fused),
            f"targets {', '.join(fused)}: Megatron's layers; peft adapts each part",
            parts,
        ),
        (
            kind == "gpt2",
            "targets: GPT-2's class holds q, k and v in one layer",
            "Megatron-Bridge",
        ),
        (
            bool(moved),
            f"targets {', '.join(moved)}: of class {kind} peft takes their names for the tensors"
            " of routed experts",
            f"targets {', '.join(kept)}" if kept else "targets of attention",
        ),
        (
            has_experts and not plan.tuner.has_expert_adapters,
            f"targets experts: {title} has no key for them",
            "the other targets, or TRL",
        ),
        (
            tuning.targets == (EXPERTS,) and not plan.tuner.adapts_experts_alone,
            f"targets experts alone: {title} adapts all linear layers where none is named",
            "another target beside them",
        ),
        (
            has_experts and (tuning.dropout > 0 or tuning.storage.is_quantized),
            "targets experts: peft adapts tensors of experts without dropout, in 16 bits",
            "dropout 0 and base bf16",
        ),
        (
            not float(tuning.alpha).is_integer() and not plan.tuner.takes_fractional_alpha,
            f"alpha {tuning.alpha:g}: {title} takes a whole number",
            f"{max(1, round(tuning.alpha))}",
        ),
    )
    return [f"{message}; closest: {fix}" for hit, message, fix in faults if hit]
