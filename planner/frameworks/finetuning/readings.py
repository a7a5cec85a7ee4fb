"""How the configuration of each tool is told by its keys, and what its keys mean.

All functions take settings as dotted keys, those that a tool takes by itself among them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodels.tuning.targets import ALL_LINEAR
from planner.errors import InputProblem, SpecError
from planner.frameworks.finetuning.adapter_names import targets_of

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerReading:
    """One tool: its keys, and what they say in fields of our files."""

    name: str
    """Of its record in `TUNERS`."""
    title: str
    groups: tuple[tuple[str, ...], ...]
    """Keys of which a file has one of each group."""
    defaults: Mapping[str, Any]
    """What it takes where its file says nothing."""
    arguments: Callable[[Settings], dict[str, Any]]
    """Its settings as arguments of the Trainer."""
    lora: Callable[[Settings], dict[str, Any] | None]
    """The section `training.lora`; None where all weights are trained."""
    packing: Callable[[Settings], str]
    """One of `costmodels.data.lengths.PACKINGS`."""
    launch: Callable[[Settings], dict[str, Any] | None]
    """The launch configuration of Accelerate that the file itself says; None: it says none."""
    stages: tuple[str, ...] = ()
    """Values of `stage` and `rl` that train on plain samples."""
    key_names: Mapping[str, str] = field(default_factory=dict)
    """Its names of the engine's settings, where they are other ones."""


def quantized_base(settings: Settings, nested: object) -> str:
    """Return how frozen weights are held by the keys `load_in_4bit` and `load_in_8bit`."""
    if settings.get("load_in_4bit"):
        return "nf4" if nested else "nf4-plain"
    return "int8" if settings.get("load_in_8bit") else "bf16"


def listed(value: object) -> list[str]:
    """Return names in a list, or in one text with commas."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [str(one) for one in value] if isinstance(value, list) else []


def lora_targets(names: list[str], tensors: object = None) -> list[str]:
    """Return `targets`; `all` and `all-linear` are each linear layer."""
    has_experts = any("experts" in one for one in listed(tensors))
    plain = [ALL_LINEAR if name in ("all", ALL_LINEAR) else name for name in names]
    return targets_of(plain, has_experts)


def _trl_arguments(settings: Settings) -> dict[str, Any]:
    return dict(settings)


def _trl_lora(settings: Settings) -> dict[str, Any] | None:
    if not settings.get("use_peft"):
        return None
    # peft adapts queries and values of most classes where no layer is named.
    names = listed(settings.get("lora_target_modules"))
    names = names or ([] if settings.get(_TENSORS) else ["q_proj", "v_proj"])
    return {
        "rank": settings["lora_r"],
        "alpha": settings["lora_alpha"],
        "dropout": settings["lora_dropout"],
        "targets": lora_targets(names, settings.get("lora_target_parameters")),
        "base": quantized_base(settings, settings.get("use_bnb_nested_quant")),
    }


def _trl_packing(settings: Settings) -> str:
    if not settings.get("packing"):
        return "none"
    return "unmasked" if settings["packing_strategy"] == "wrapped" else "masked"


def _axolotl_arguments(settings: Settings) -> dict[str, Any]:
    names = {"micro_batch_size": "per_device_train_batch_size", "sequence_len": "max_length"}
    names |= {"optimizer": "optim"}
    arguments = {names.get(key, key): value for key, value in settings.items()}
    if arguments.get("bf16") == "auto":
        arguments["bf16"] = True
    return arguments


def _axolotl_lora(settings: Settings) -> dict[str, Any] | None:
    if settings.get("adapter") not in ("lora", "qlora"):
        return None
    names = [ALL_LINEAR] if settings.get("lora_target_linear") else []
    names += listed(settings.get("lora_target_modules"))
    usual = [] if settings.get(_TENSORS) else ["q_proj", "v_proj"]
    nested = settings.get("bnb_config_kwargs.bnb_4bit_use_double_quant", True)
    return {
        "rank": settings.get("lora_r") or 8,
        "alpha": settings.get("lora_alpha") or 16,
        "dropout": settings.get("lora_dropout") or 0.0,
        "targets": lora_targets(names or usual, settings.get(_TENSORS)),
        "base": quantized_base(settings, nested),
    }


_TENSORS = "lora_target_parameters"


def _axolotl_packing(settings: Settings) -> str:
    return "masked" if settings.get("sample_packing") else "none"


def _axolotl_launch(settings: Settings) -> dict[str, Any] | None:
    """Return the FSDP section, or the file of DeepSpeed, as Accelerate's file has them."""
    if named := settings.get("deepspeed"):
        inner = {"deepspeed_config_file": str(named)}
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": inner}
    block = {
        key.removeprefix("fsdp_config.").removeprefix("fsdp_"): value
        for key, value in settings.items()
        if key.startswith("fsdp_config.")
    }
    if not block:
        return {"distributed_type": "MULTI_GPU"}
    version = settings.get("fsdp_version") or block.pop("version", 1)
    block.pop("mixed_precision_policy", None)
    fsdp = {f"fsdp_{key}": value for key, value in block.items() if key != "final_state_dict_type"}
    data: dict[str, Any] = {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_version": version, **fsdp},
    }
    degrees = {
        f"parallelism_config_{name}_size": settings[key]
        for name, key in _SIZES.items()
        if settings.get(key)
    }
    if degrees and version == 2:
        world = 1
        for size in degrees.values():
            world *= int(size)
        data |= {"parallelism_config": degrees, "num_processes": world}
    return data


def _factory_arguments(settings: Settings) -> dict[str, Any]:
    is_off = settings.get("disable_gradient_checkpointing")
    return {**settings, "gradient_checkpointing": not is_off}


def _factory_lora(settings: Settings) -> dict[str, Any] | None:
    if settings["finetuning_type"] != "lora":
        return None
    rank, bits = settings["lora_rank"], settings.get("quantization_bit")
    plain = {"load_in_4bit": bits == 4, "load_in_8bit": bits == 8}
    return {
        "rank": rank,
        "alpha": settings.get("lora_alpha") or 2 * rank,
        "dropout": settings["lora_dropout"],
        "targets": lora_targets(listed(settings["lora_target"])),
        "base": quantized_base(plain, settings["double_quantization"]),
    }


def _factory_packing(settings: Settings) -> str:
    if settings.get("neat_packing"):
        return "masked"
    return "unmasked" if settings.get("packing") else "none"


def _factory_launch(settings: Settings) -> dict[str, Any] | None:
    if named := settings.get("deepspeed"):
        inner = {"deepspeed_config_file": str(named)}
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": inner}
    return None


_SIZES = {
    "dp_shard": "dp_shard_size",
    "dp_replicate": "dp_replicate_size",
    "tp": "tensor_parallel_size",
    "cp": "context_parallel_size",
}
"""Degrees of axolotl by those of Accelerate."""
_AXOLOTL_NAMES = {
    "per_device_train_batch_size": "micro_batch_size",
    "optim": "optimizer",
    **{
        f"fsdp_config.fsdp_{key}": f"fsdp_config.{key}"
        for key in ("activation_checkpointing", "reshard_after_forward", "offload_params")
    },
    **{f"parallelism_config.parallelism_config_{k}_size": name for k, name in _SIZES.items()},
}
_TRAINER_DEFAULTS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
READINGS = (
    TunerReading(
        name="axolotl",
        title="axolotl",
        groups=(
            ("base_model",),
            ("sequence_len", "datasets", "micro_batch_size", "adapter"),
        ),
        defaults={
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "sequence_len": 512,
            "bf16": "auto",
        },
        arguments=_axolotl_arguments,
        lora=_axolotl_lora,
        packing=_axolotl_packing,
        launch=_axolotl_launch,
        key_names=_AXOLOTL_NAMES,
    ),
    TunerReading(
        name="llama-factory",
        title="LLaMA-Factory",
        groups=(
            ("model_name_or_path",),
            ("finetuning_type", "template", "cutoff_len", "stage"),
        ),
        defaults={
            **_TRAINER_DEFAULTS,
            "cutoff_len": 2048,
            "finetuning_type": "lora",
            "lora_rank": 8,
            "lora_dropout": 0.0,
            "lora_target": "all",
            "double_quantization": True,
        },
        arguments=_factory_arguments,
        lora=_factory_lora,
        packing=_factory_packing,
        launch=_factory_launch,
        stages=("pt", "sft"),
    ),
    TunerReading(
        name="trl",
        title="TRL",
        groups=(
            ("model_name_or_path",),
            (
                "per_device_train_batch_size",
                "dataset_name",
                "dataset_mixture",
                "learning_rate",
                "use_peft",
            ),
        ),
        defaults={
            **_TRAINER_DEFAULTS,
            "max_length": 1024,
            "packing_strategy": "bfd",
            "gradient_checkpointing": True,
            "lora_r": 16,
            "lora_alpha": 32,
            "lora_dropout": 0.05,
        },
        arguments=_trl_arguments,
        lora=_trl_lora,
        packing=_trl_packing,
        launch=_factory_launch,
    ),
)
"""In the order in which a file is asked whose it is: LLaMA-Factory's have TRL's keys too."""


def reading_of(keys: set[str]) -> TunerReading | None:
    """Return whose configuration has these keys at its top; None for none of the tools."""
    for one in READINGS:
        if all(keys & set(group) for group in one.groups):
            return one
    return None


def check_stage(reading: TunerReading, settings: Settings, source: str) -> None:
    """Raise `SpecError` for a stage that is no training on plain samples."""
    stage = settings.get("stage") or settings.get("rl")
    if stage and str(stage) not in reading.stages:
        fix = f"stage {' or '.join(reading.stages)}" if reading.stages else "leave rl out"
        message = f"{reading.title} trains by {stage} here, which is not read"
        raise SpecError(InputProblem(message, fix, source))
