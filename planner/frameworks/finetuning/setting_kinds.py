"""Types of the settings that are read of tools; a value of another type is one clear error."""

from collections.abc import Callable, Mapping
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.runs.settings import MOST_NUMBER

MOST_TEXT = 40
"""Characters of the longest text that is read as a number."""


def _number(value: object) -> float | int | None:
    """Return a number, also one that a command holds as a word; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and len(value) <= MOST_TEXT:
        try:
            value = int(value) if value.strip().lstrip("+-").isdecimal() else float(value)
        except ValueError:
            return None
    if not isinstance(value, int | float) or not abs(value) <= MOST_NUMBER:
        return None
    return value


def _whole(value: object, least: int) -> int | None:
    number = _number(value)
    is_whole = number is not None and float(number).is_integer() and number >= least
    return int(number) if number is not None and is_whole else None


def _switch(value: object) -> bool | None:
    if isinstance(value, str):
        words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        return words.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _automatic(value: object) -> object:
    return value if value == "auto" else _switch(value)


def _recomputed(value: object) -> bool | None:
    """Return whether layers are recomputed; axolotl has words for inputs that leave the card."""
    return True if value in ("offload", "offload_disk") else _switch(value)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _names(value: object) -> object:
    """Return names in one text or a list of texts."""
    is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return value if is_list or isinstance(value, str) else None


Kind = tuple[Callable[[object], object], str]
COUNT: Kind = (lambda value: _whole(value, 1), "a whole number from 1 on")
DEGREE: Kind = (lambda value: _whole(value, 0), "a whole number")
NUMBER: Kind = (_number, "a number")
SWITCH: Kind = (_switch, "true or false")
TEXT: Kind = (_text, "a text")
NAMES: Kind = (_names, "names in a text or a list")
KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("per_device_train_batch_size", "micro_batch_size"), COUNT),
    "gradient_accumulation_steps": COUNT,
    **dict.fromkeys(("max_length", "sequence_len", "cutoff_len"), COUNT),
    **dict.fromkeys(("lora_r", "lora_rank"), COUNT),
    **dict.fromkeys(("lora_alpha", "lora_dropout"), NUMBER),
    **dict.fromkeys(("quantization_bit", "fsdp_version"), DEGREE),
    **dict.fromkeys(("dp_shard_size", "dp_replicate_size", "tensor_parallel_size"), DEGREE),
    **dict.fromkeys(("context_parallel_size", "sequence_parallel_size"), DEGREE),
    "sequence_parallel_degree": DEGREE,
    "deepspeed_autotp_size": DEGREE,
    **dict.fromkeys(("use_peft", "load_in_4bit", "load_in_8bit", "use_bnb_nested_quant"), SWITCH),
    **dict.fromkeys(("packing", "neat_packing", "sample_packing"), SWITCH),
    **dict.fromkeys(("precompute_ref_log_probs", "lora_target_linear", "fp16"), SWITCH),
    **dict.fromkeys(("double_quantization", "bnb_4bit_use_double_quant"), SWITCH),
    "bnb_config_kwargs.bnb_4bit_use_double_quant": SWITCH,
    "disable_gradient_checkpointing": SWITCH,
    "gradient_checkpointing": (_recomputed, SWITCH[1]),
    "bf16": (_automatic, "true, false or auto"),
    **dict.fromkeys(("lora_target", "lora_target_modules", "target_modules"), NAMES),
    **dict.fromkeys(("lora_target_parameters", "target_parameters"), NAMES),
    **dict.fromkeys(("stage", "rl", "rlhf_type", "pref_loss", "packing_strategy"), TEXT),
    **dict.fromkeys(("adapter", "finetuning_type", "tuner_type", "train_type"), TEXT),
    **dict.fromkeys(("quant_method", "quantization_method", "torch_dtype"), TEXT),
    **dict.fromkeys(("optim", "optimizer"), TEXT),
    **dict.fromkeys(("batch_size", "model.lora_rank", "tokenizer.max_seq_len"), COUNT),
    "tensor_parallel_dim": COUNT,
    **dict.fromkeys(("model.lora_alpha", "model.lora_dropout"), NUMBER),
    **dict.fromkeys(("model.apply_lora_to_mlp", "model.apply_lora_to_output"), SWITCH),
    **dict.fromkeys(("model.quantize_base", "dataset.packed", "fsdp_cpu_offload"), SWITCH),
    "enable_activation_checkpointing": SWITCH,
    "enable_activation_offloading": SWITCH,
    "fsdp_reshard_after_forward": SWITCH,
    "optimizer_in_bwd": SWITCH,
    "model.lora_attn_modules": NAMES,
    **dict.fromkeys(("model._component_", "optimizer._component_"), TEXT),
    **dict.fromkeys(("loss._component_", "dtype"), TEXT),
    "deepspeed": (_text, "the name of a file"),
}
"""What a setting holds: how it is read, and in words."""
SECTIONS = ("fsdp_config", "bnb_config_kwargs")
"""Settings that hold others."""
NAMES_FILE = ("fsdp_config",)
"""Those of them that may name a file in their place."""


def typed_settings(
    settings: Mapping[str, Any], source: str, sections: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return dotted settings with the types that they are read with, null ones left out.

    `sections` hold others too, as those of `SECTIONS`. Raises `SpecError` for a value of another
    type.
    """
    stated = {key: value for key, value in settings.items() if value is not None}
    for key, value in stated.items():
        section = key.partition(".")[0]
        if section != key and section in KINDS and section not in sections:
            _refuse(section, KINDS[section][1], "a section", source)
        names_file = key in NAMES_FILE and isinstance(value, str)
        if key in (*SECTIONS, *sections) and value != {} and not names_file:
            _refuse(key, "a section", repr(value), source)
        if key not in KINDS:
            continue
        read, words = KINDS[key]
        stated[key] = read(value)
        if stated[key] is None:
            _refuse(key, words, repr(value), source)
    return stated


def _refuse(key: str, expected: str, got: str, source: str) -> None:
    shown = got if len(got) <= MOST_TEXT else f"{got[:MOST_TEXT]}..."
    raise SpecError(InputProblem(f"{key}: expected {expected}, got {shown}", "", source))
