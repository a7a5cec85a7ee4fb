"""What the settings of a recipe of torchtune mean."""

from collections.abc import Mapping
from typing import Any

from planner.frameworks.finetuning.torchtune.emitter import ATTENTION, MLP

Settings = Mapping[str, Any]
OPTIM = {
    **dict.fromkeys(("torch.optim.AdamW", "torch.optim.Adam"), "adamw_torch"),
    "torchao.optim.AdamW8bit": "adamw_torch_8bit",
    "torchao.prototype.low_bit_optim.AdamW8bit": "adamw_torch_8bit",
    "bitsandbytes.optim.AdamW": "adamw_torch",
    "bitsandbytes.optim.AdamW8bit": "adamw_bnb_8bit",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
    "bitsandbytes.optim.PagedAdamW": "paged_adamw_32bit",
}
"""`optim` of the Trainer by the component of the optimizer."""
DEFAULTS = {
    "batch_size": 1,
    "gradient_accumulation_steps": 1,
    "dtype": "bf16",
    "model.lora_rank": 8,
    "model.lora_alpha": 16,
    "model.lora_dropout": 0.0,
    "fsdp_reshard_after_forward": True,
}
"""Of builders with sizes in their names, and of recipes. Source: torchtune 0.6.1."""
SECTIONS = (
    *("model", "optimizer", "dataset", "tokenizer", "checkpointer", "loss", "lr_scheduler"),
    *("metric_logger", "profiler", "teacher_model", "teacher_checkpointer", "kd_loss"),
)
NAMES = {
    "per_device_train_batch_size": "batch_size",
    "fsdp_config.fsdp_activation_checkpointing": "enable_activation_checkpointing",
    "fsdp_config.fsdp_activation_checkpointing_offload": "enable_activation_offloading",
    "fsdp_config.fsdp_reshard_after_forward": "fsdp_reshard_after_forward",
    "fsdp_config.fsdp_offload_params": "fsdp_cpu_offload",
    "parallelism_config.parallelism_config_tp_size": "tensor_parallel_dim",
    "parallelism_config.parallelism_config_dp_shard_size": "",  # all ranks of a copy of tensors
    "fsdp_config.fsdp_cpu_ram_efficient_loading": "",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""Its names of the engine's settings; it has none for the others."""


def left_out_names(settings: Settings) -> tuple[str, ...]:
    """Return the engine's settings that a recipe has not: degrees without a plan for tensors."""
    has_plan = any(key.partition(".")[0] == "tensor_parallel_plan" for key in settings)
    return () if has_plan else ("parallelism_config.parallelism_config_tp_size",)


OF_OTHER_RECIPES = {
    "tasks": "evaluates a model",
    "prompt": "generates text",
    "max_new_tokens": "generates text",
    "quantizer": "quantizes a model",
}
"""What the recipes without an optimizer do, by a key or section of their configuration."""


def not_training(settings: Settings) -> str:
    """Return what a configuration without an optimizer does; empty for one that trains."""
    tops = {key.partition(".")[0] for key in settings}
    if "optimizer" in tops:
        return ""
    named = (what for key, what in OF_OTHER_RECIPES.items() if key in tops)
    return next(named, "has no optimizer")


def held_values(settings: Settings, n_devices: int | None) -> dict[str, tuple[int, ...]]:
    """Return the values by axis of plans that a recipe can say on so many devices.

    Weights are sharded over all of several; tensors are cut where a plan for it is named.
    """
    held: dict[str, tuple[int, ...]] = {"cp": (1,)}
    if not left_out_names(settings):
        return held
    held["tp"] = (1,)
    several = {"zero": (2, 3), "dp_shard": (n_devices or 0,)}
    return held | (several if n_devices and n_devices > 1 else {})


def torchtune_arguments(settings: Settings) -> dict[str, Any]:
    """Return its settings as arguments of the Trainer."""
    stated = str(settings.get("optimizer._component_", ""))
    return {
        "per_device_train_batch_size": settings["batch_size"],
        "gradient_accumulation_steps": settings["gradient_accumulation_steps"],
        "max_length": settings.get("tokenizer.max_seq_len"),
        "gradient_checkpointing": settings.get("enable_activation_checkpointing"),
        "bf16": settings["dtype"] == "bf16",
        "optim": OPTIM.get(stated, stated),
    }


def torchtune_lora(settings: Settings) -> dict[str, Any] | None:
    """Return the section `training.lora`; None where the builder is of all weights."""
    component = str(settings.get("model._component_", ""))
    builder = component.rpartition(".")[2]
    if not builder.startswith(("lora_", "qlora_")):
        return None
    ours = {name: target for target, name in ATTENTION.items()}
    named = settings.get("model.lora_attn_modules") or []
    named = [named] if isinstance(named, str) else named
    targets = [ours.get(name, name) for name in named]
    targets += MLP if settings.get("model.apply_lora_to_mlp") else ()
    is_nf4 = builder.startswith("qlora_") or settings.get("model.quantize_base")
    return {
        "rank": settings["model.lora_rank"],
        "alpha": settings["model.lora_alpha"],
        "dropout": settings["model.lora_dropout"],
        "targets": targets,
        "base": "nf4" if is_nf4 else "bf16",
    }


def torchtune_packing(settings: Settings) -> str:
    """Return how samples become sequences: its packs are masked."""
    return "masked" if settings.get("dataset.packed") else "none"


def torchtune_reference(settings: Settings) -> str:
    """Return where the reference is: pairs are told by their loss."""
    loss = str(settings.get("loss._component_", ""))
    return "memory" if loss.endswith("DPOLoss") else ""


def torchtune_launch(settings: Settings, _: object) -> dict[str, Any]:
    """Return the sharding of its recipes as the launch configuration of Accelerate."""
    return {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16" if settings["dtype"] == "bf16" else "no",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": settings["fsdp_reshard_after_forward"],
            "fsdp_activation_checkpointing": settings.get("enable_activation_checkpointing"),
            "fsdp_activation_checkpointing_offload": settings.get("enable_activation_offloading"),
            "fsdp_offload_params": settings.get("fsdp_cpu_offload"),
        },
        "parallelism_config": {
            "parallelism_config_tp_size": settings.get("tensor_parallel_dim") or 1
        },
    }


def torchtune_precision(settings: Settings) -> str:
    """Return the numbers of a job: all weights are trained in the one format that is stated.

    Beside adapters frozen weights decide what a run takes; adapters have a copy in fp32 here.
    """
    if settings["dtype"] != "bf16":
        return "fp32"
    return "bf16-true" if torchtune_lora(settings) is None else "bf16"


def torchtune_notes(settings: Settings) -> tuple[str, ...]:
    """Return what of its formats is priced otherwise."""
    notes = ["torchtune shards by FSDP2: the rules are those of Accelerate's"]
    if settings["dtype"] == "bf16" and torchtune_lora(settings) is not None:
        notes += ["dtype bf16: adapters and their states are priced in fp32"]
    if settings.get("optimizer_in_bwd"):
        text = "gradients that the backward frees are priced; memory is overestimated"
        notes += [f"optimizer_in_bwd: {text}"]
    return tuple(notes)


def torchtune_refused(settings: Settings) -> tuple[str, ...]:
    """Return what recipes of torchtune 0.6.1 refuse as they start, in words."""
    of_backward = bool(settings.get("optimizer_in_bwd"))
    recomputes = bool(settings.get("enable_activation_checkpointing"))
    degree = settings.get("tensor_parallel_dim") or 1
    faults = (
        (
            of_backward and settings["gradient_accumulation_steps"] > 1,
            "optimizer_in_bwd with gradient_accumulation_steps above 1: the backward updates",
        ),
        (
            of_backward and settings.get("clip_grad_norm") is not None,
            "optimizer_in_bwd with clip_grad_norm: no whole gradient is left to clip",
        ),
        (
            bool(settings.get("enable_activation_offloading")) and not recomputes,
            "enable_activation_offloading without enable_activation_checkpointing",
        ),
        (
            degree > 1 and bool(settings.get("optimizer.fused")),
            f"optimizer.fused with tensor_parallel_dim {degree}",
        ),
        (
            degree > 1 and bool(left_out_names(settings)),
            f"tensor_parallel_dim {degree} without tensor_parallel_plan",
        ),
    )
    return tuple(message for hit, message in faults if hit)
