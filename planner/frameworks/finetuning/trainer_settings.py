"""What all tools hand to the Trainer of Hugging Face and to its engine."""

from planner.frameworks.deepspeed.emitter import deepspeed_config
from planner.frameworks.emitted_text import nodes
from planner.frameworks.finetuning.tuned_plan import TunedPlan
from planner.frameworks.fsdp2.emitter import launch_config, trainer_args
from planner.frameworks.programs import attention_setting

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
"""PyTorch's name of a precision."""


def accelerate_settings(plan: TunedPlan) -> dict[str, object]:
    """Return the launch configuration of Accelerate for the engine of a plan.

    Whole weights are saved of FSDP2, so that adapters stand in one file. Quantized ones are read
    by every rank: those that one rank has read are not handed out.
    """
    layout, n_devices = plan.layout, plan.layout.n_devices
    settings = launch_config(layout, plan.job, plan.request.pool)
    if plan.is_sharded:
        block = settings["fsdp_config"]
        assert isinstance(block, dict)  # as `launch_config` writes it
        is_quantized = plan.tuning is not None and plan.tuning.storage.is_quantized
        changed = {
            "fsdp_cpu_ram_efficient_loading": not is_quantized,
            "fsdp_state_dict_type": "FULL_STATE_DICT",
        }
        return settings | {"fsdp_config": block | changed}
    for name in ("fsdp_config", "parallelism_config"):
        del settings[name]
    if not plan.on_deepspeed:
        return settings | {"distributed_type": "MULTI_GPU" if n_devices > 1 else "NO"}
    del settings["mixed_precision"]  # the JSON says it
    named: dict[str, object] = {"deepspeed_config_file": plan.tuner.deepspeed_file}
    named["zero3_init_flag"] = layout.zero == 3
    return settings | {"distributed_type": "DEEPSPEED", "deepspeed_config": named}


def deepspeed_settings(plan: TunedPlan) -> dict[str, object]:
    """Return DeepSpeed's JSON as the Trainer takes it: its own learning rate, its own layers.

    The Trainer recomputes by itself. With ZeRO 3 whole weights are gathered where they are saved.
    """
    config = deepspeed_config(plan.sample_layout, plan.shape, plan.job)
    for name in ("activation_checkpointing", "expert_parallel"):
        config.pop(name, None)
    names = ("lr", "betas", "weight_decay") + ("eps",) * (plan.job.optimizer != "lion")
    kind = "Lion" if plan.job.optimizer == "lion" else "AdamW"
    config["optimizer"] = {"type": kind, "params": dict.fromkeys(names, "auto")}
    zero = config["zero_optimization"]
    if plan.layout.zero == 3 and isinstance(zero, dict):
        config["zero_optimization"] = zero | {"stage3_gather_16bit_weights_on_model_save": True}
    return config


def trainer_fields(plan: TunedPlan) -> dict[str, object]:
    """Return the fields of transformers' TrainingArguments that the plan decides.

    FSDP2 recomputes by its own key; gradients are reduced at every micro-batch where it shards.
    A job without `tokens` trains one epoch.
    """
    fields = trainer_args(plan.sample_layout, plan.job, with_optimizer=not plan.on_deepspeed)
    if not plan.is_sharded:
        fields.pop("accelerator_config", None)
    if not plan.job.tokens:
        del fields["max_steps"]
        fields["num_train_epochs"] = 1
    if plan.recomputes and not plan.is_sharded:
        fields["gradient_checkpointing"] = True
        fields["gradient_checkpointing_kwargs"] = {"use_reentrant": is_reentrant(plan)}
    return fields


def is_reentrant(plan: TunedPlan) -> bool:
    """Tell whether layers are recomputed by autograd's reentrant function, as ZeRO 3 needs.

    Pairs over several devices beside 4-bit weights must not be. Source: axolotl 0.19.0,
    utils/schemas/validation.py (check_rl_config_gradient_checkpointing).
    """
    is_nf4 = plan.tuning is not None and plan.tuning.base in ("nf4", "nf4-plain")
    spared = plan.compares_answers and is_nf4 and plan.layout.zero < 3
    return plan.on_deepspeed and not spared


def model_dtype(plan: TunedPlan) -> str:
    """Return the format in which weights are loaded.

    FSDP2 and plain replicas train all weights in fp32, cast in each product; frozen ones are held
    in the plan's precision, and so is what DeepSpeed keeps a second copy of.
    """
    is_wide = plan.tuning is None and not plan.on_deepspeed
    return "float32" if is_wide else TORCH_DTYPES[plan.job.recipe.gemm_precision]


def attention_name(plan: TunedPlan) -> str:
    """Return the `attn_implementation`: packs with masks need FlashAttention's."""
    data, shape = plan.job.data, plan.shape
    if data is not None and data.packing == "masked":
        return "flash_attention_2"
    return attention_setting(shape, shape.flash_attention)


def plan_nodes(plan: TunedPlan) -> tuple[int, int]:
    """Return nodes, and processes on each."""
    return nodes(plan.layout, plan.request.pool)
