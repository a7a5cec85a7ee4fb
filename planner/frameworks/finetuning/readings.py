"""How the configuration of each tool is told by its keys, and what its keys mean.

All functions take settings as dotted keys, those that a tool takes by itself among them.
"""

from collections.abc import Mapping
from typing import Any

from costmodels.tuning.targets import ALL_LINEAR
from planner.errors import InputProblem, SpecError
from planner.frameworks.finetuning.adapter_names import targets_of
from planner.frameworks.finetuning.settings.sharding import (
    SIZES,
    axolotl_launch,
    trainer_sharding,
)
from planner.frameworks.finetuning.settings.tuner_reading import TunerReading
from planner.frameworks.finetuning.torchtune import reading as torchtune
from planner.frameworks.runs.existing_run import NO_KEY
from planner.frameworks.runs.format import FindFile
from planner.specs.yaml.document import parse_yaml

Settings = Mapping[str, Any]


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


DPO_KEY = "precompute_ref_log_probs"


def _trl_reference(settings: Settings) -> str:
    """Return where the reference is; a file of `dpo` is known by its launcher or a key."""
    is_dpo = settings.get("stage") == "dpo" or bool(_dpo_key(settings))
    return _computed(settings) if is_dpo else ""


def _dpo_key(settings: Settings) -> str:
    """Return the setting of DPO that tells what a file is for, where no launcher says it."""
    if settings.get("stage"):
        return ""
    return next((key for key in (DPO_KEY, "beta", "max_prompt_length") if key in settings), "")


def _trl_notes(settings: Settings) -> tuple[str, ...]:
    key = _dpo_key(settings)
    return (f"{key}: a setting of DPO, so it is read as a run of trl.scripts.dpo",) if key else ()


def _computed(settings: Settings) -> str:
    return "precomputed" if settings.get(DPO_KEY) else "memory"


def _axolotl_reference(settings: Settings) -> str:
    """Return where the reference is; one of all weights stays in memory."""
    if settings.get("rl") != "dpo":
        return ""
    return _computed(settings) if settings.get("adapter") else "memory"


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


def _factory_arguments(settings: Settings) -> dict[str, Any]:
    is_off = settings.get("disable_gradient_checkpointing")
    of_generation = ("max_length", "model_max_length")
    kept = {key: value for key, value in settings.items() if key not in of_generation}
    return {**kept, "gradient_checkpointing": not is_off}


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


def _factory_not_training(settings: Settings) -> str:
    if settings.get("export_dir"):
        return "exports a model"
    if settings.get("do_train") or settings.get("dataset"):
        return ""
    if settings.get("do_predict") or settings.get("eval_dataset"):
        return "evaluates a model"
    return "generates text" if settings.get("infer_backend") else ""


def _factory_reference(settings: Settings) -> str:
    if settings.get("stage") != "dpo":
        return ""
    return "none" if settings.get("pref_loss") in ("orpo", "simpo") else "memory"


def _factory_packing(settings: Settings) -> str:
    if settings.get("stage") == "dpo":
        return "none"
    if settings.get("neat_packing"):
        return "masked"
    return "unmasked" if settings.get("packing") else "none"


def _trainer_launch(settings: Settings, find: FindFile) -> dict[str, Any] | None:
    if named := settings.get("deepspeed"):
        inner = {"deepspeed_config_file": str(named)}
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": inner}
    return trainer_sharding(settings, find)


def _swift_lora(settings: Settings) -> dict[str, Any] | None:
    if settings.get("tuner_type", settings.get("train_type", "lora")) != "lora":
        return None
    bits = settings.get("quant_bits") if settings.get("quant_method") == "bnb" else None
    plain = {"load_in_4bit": str(bits) == "4", "load_in_8bit": str(bits) == "8"}
    tensors = settings.get("target_parameters")
    return {
        "rank": settings["lora_rank"],
        "alpha": settings["lora_alpha"],
        "dropout": settings["lora_dropout"],
        "targets": lora_targets(listed(settings["target_modules"]), tensors),
        "base": quantized_base(plain, settings["bnb_4bit_use_double_quant"]),
    }


def _swift_packing(settings: Settings) -> str:
    return "masked" if settings.get("packing") else "none"


def _swift_reference(settings: Settings) -> str:
    kind = settings.get("rlhf_type", "dpo" if settings.get("stage") == "rlhf" else "")
    return "memory" if kind == "dpo" else ""


def _swift_arguments(settings: Settings) -> dict[str, Any]:
    """Return its settings with the precision that `torch_dtype` stands for where none is said."""
    is_fp16 = settings.get("torch_dtype") in ("float16", "float32")
    is_bf16 = not is_fp16 and not settings.get("fp16")
    return {"fp16": is_fp16, "bf16": is_bf16, **settings}


def _swift_launch(settings: Settings, find: FindFile) -> dict[str, Any] | None:
    """Return what shards, over sequences that ranks share by exchanges of heads (Ulysses)."""
    launch = _swift_sharding(settings, find)
    parts = settings.get("sequence_parallel_size") or 1
    block = {"parallelism_config_sp_size": parts}
    return launch | ({"parallelism_config": block} if parts > 1 else {})


def _swift_sharding(settings: Settings, find: FindFile) -> dict[str, Any]:
    """Return the section of `fsdp`, or the file or preset of `deepspeed`."""
    if named := settings.get("deepspeed"):
        said = _swift_arguments(settings)
        kind = next((x for x in ("bf16", "fp16") if said[x] is True), "no")
        return {**_swift_deepspeed(named), "mixed_precision": kind}
    named = settings.get("fsdp") or ""
    if not isinstance(named, str):
        message = f"fsdp: expected fsdp2 or the name of a file, got {named!r}"
        raise SpecError(InputProblem(message))
    if not named:
        return {"distributed_type": "MULTI_GPU"}
    text = find(named) if named != "fsdp2" else "{}"
    if text is None:
        fix = "put it beside this file"
        raise SpecError(InputProblem(f"fsdp names {named}, which cannot be read", fix))
    data = parse_yaml(text, named).data
    section = data.get("fsdp_config") or FSDP2_PRESET if isinstance(data, Mapping) else None
    if not isinstance(section, Mapping):
        message = "expected the section fsdp_config of FSDP2"
        raise SpecError(InputProblem(message, "such as fsdp: fsdp2", named))
    block = {f"fsdp_{key.removeprefix('fsdp_')}": value for key, value in section.items()}
    return {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, **block}}


FSDP2_PRESET = {"reshard_after_forward": True, "activation_checkpointing": True}
"""What `fsdp: fsdp2` says of a layout. Source: ms-swift 4.6.0, config/fsdp2.json."""


def _swift_deepspeed(named: str) -> dict[str, Any]:
    """Return Accelerate's section for a file, or for a preset: `zero2_offload`."""
    stage, _, offload = named.removeprefix("zero").partition("_")
    is_preset = stage in ("0", "1", "2", "3") and offload in ("", "offload")
    if not (named.startswith("zero") and is_preset):
        inner: dict[str, Any] = {"deepspeed_config_file": named}
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": inner}
    parts = ["optimizer"] + ["param"] * (stage == "3")
    on_host = {f"offload_{part}_device": "cpu" for part in parts} if offload else {}
    inner = {"zero_stage": int(stage), **on_host}
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": inner}


_AXOLOTL_NAMES = {
    "per_device_train_batch_size": "micro_batch_size",
    "optim": "optimizer",
    **{
        f"fsdp_config.fsdp_{key}": f"fsdp_config.{key}"
        for key in ("activation_checkpointing", "reshard_after_forward", "offload_params")
    },
    "fsdp_config.fsdp_activation_checkpointing_offload": NO_KEY,
    **{f"parallelism_config.parallelism_config_{k}_size": name for k, name in SIZES.items()},
}
_OF_LAUNCH_FILE = {f"parallelism_config.parallelism_config_{name}_size": NO_KEY for name in SIZES}
"""Degrees, which a file of `accelerate config` says, and none that has `fsdp` itself."""


def _with_own_sharding(settings: Settings) -> tuple[str, ...]:
    """Return the settings of `_OF_LAUNCH_FILE` where a launch file beside it may say them."""
    return () if settings.get("fsdp") else tuple(_OF_LAUNCH_FILE)


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
        reference=_axolotl_reference,
        launch=axolotl_launch,
        stages=("dpo",),
        means={"adapter": ("lora", "qlora")},
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
        reference=_factory_reference,
        launch=_trainer_launch,
        key_names=_OF_LAUNCH_FILE,
        left_out_names=_with_own_sharding,
        not_training=_factory_not_training,
        stages=("pt", "sft", "dpo"),
        means={
            "finetuning_type": ("lora", "full"),
            "quantization_method": ("bnb", "bitsandbytes"),
            "quantization_bit": (4, 8),
        },
    ),
    TunerReading(
        name="swift",
        title="ms-swift",
        groups=(
            ("model",),
            (
                "tuner_type",
                "train_type",
                "rlhf_type",
                "target_modules",
                "torch_dtype",
                "attn_impl",
            ),
        ),
        strange=("tensor_model_parallel_size", "micro_batch_size", "recompute_granularity"),
        defaults={
            "per_device_train_batch_size": 1,
            "gradient_checkpointing": True,
            "lora_rank": 8,
            "lora_alpha": 32,
            "lora_dropout": 0.05,
            "target_modules": "all-linear",
            "bnb_4bit_use_double_quant": True,
        },
        arguments=_swift_arguments,
        lora=_swift_lora,
        packing=_swift_packing,
        reference=_swift_reference,
        launch=_swift_launch,
        batch_samples=16,
        stages=("pt", "sft", "rlhf", "dpo"),
        means={
            "tuner_type": ("lora", "full"),
            "train_type": ("lora", "full"),
            "quant_method": ("bnb",),
            "quant_bits": (4, 8),
            "deepspeed_autotp_size": (1,),
        },
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
        arguments=dict,
        lora=_trl_lora,
        packing=_trl_packing,
        reference=_trl_reference,
        notes=_trl_notes,
        launch=_trainer_launch,
        key_names=_OF_LAUNCH_FILE,
        left_out_names=_with_own_sharding,
        stages=("sft", "dpo"),
    ),
    TunerReading(
        name="torchtune",
        title="torchtune",
        groups=(
            ("model", "policy_model"),
            ("tokenizer", "quantizer"),
            ("checkpointer",),
        ),
        not_training=torchtune.not_training,
        sections=torchtune.SECTIONS,
        defaults=torchtune.DEFAULTS,
        arguments=torchtune.torchtune_arguments,
        lora=torchtune.torchtune_lora,
        packing=torchtune.torchtune_packing,
        reference=torchtune.torchtune_reference,
        launch=torchtune.torchtune_launch,
        precision=torchtune.torchtune_precision,
        held_values=torchtune.held_values,
        refused=torchtune.torchtune_refused,
        notes=torchtune.torchtune_notes,
        means={
            "dtype": ("bf16", "fp32"),
            "model.apply_lora_to_output": (False,),
        },
        key_names=torchtune.NAMES,
        left_out_names=torchtune.left_out_names,
    ),
)
"""In the order in which a file is asked whose it is: LLaMA-Factory's have TRL's keys too."""


def reading_of(keys: set[str]) -> TunerReading | None:
    """Return whose configuration has these keys at its top; None for none of the tools."""
    for one in READINGS:
        if all(keys & set(group) for group in one.groups) and not keys & set(one.strange):
            return one
    return None
