"""How a tool's own file says that FSDP shards: the Trainer's `fsdp` and `fsdp_config`, axolotl's.

Both become the launch configuration of Accelerate of the same job.
"""

import json
from collections.abc import Mapping
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.finetuning.settings.table import is_off
from planner.frameworks.runs.format import FindFile
from planner.frameworks.runs.settings import MOST_NUMBER
from searches.frameworks.fsdp2 import BLOCKS, STRATEGIES

Settings = Mapping[str, Any]
OF_BLOCK = frozenset(name.removeprefix("fsdp_") for name in BLOCKS["fsdp_config"])
"""Settings of the section that Accelerate's file has too, without their prefix."""
SAME = frozenset(
    (
        *("final_state_dict_type", "mixed_precision_policy", "limit_all_gathers", "xla"),
        *("cpu_offload_pin_memory", "xla_fsdp_settings", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"),
    )
)
"""Settings of the section that change no price, as long as XLA is off."""
WORDS = ("auto_wrap", "offload", *(name.lower() for name in STRATEGIES))
"""Words of `fsdp`: how layers are wrapped, where states lie, how weights are sharded."""
DEEPSPEED_ALONE = "one of deepspeed and fsdp"


def trainer_sharding(settings: Settings, find: FindFile) -> dict[str, Any] | None:
    """Return the launch configuration for `fsdp` and `fsdp_config`; None where they are off.

    `fsdp_config` alone is passed over by the Trainer, and refused. The version is 2 unless it is
    said, or a word is of FSDP1. Source: transformers 5.24.0, training_args.py
    (_process_fsdp_args, _apply_legacy_fsdp_to_config).
    """
    section, value = _section(settings, find), settings.get("fsdp")
    if is_off(value):
        if section:
            message = "fsdp_config without fsdp: the Trainer passes over it"
            raise SpecError(InputProblem(message, "fsdp true, or leave fsdp_config out"))
        return None
    words = words_of(value)
    of_fsdp1 = any(word.startswith("hybrid") or word == "no_shard" for word in words)
    version = _version(section.pop("version", 1 if of_fsdp1 else 2))
    return fsdp_launch(section, words, version)


def words_of(value: object) -> list[str]:
    """Return the words of `fsdp`: none of true, else those of a text or a list.

    Raises `SpecError` for a word that it has not.
    """
    if isinstance(value, bool) or str(value).lower() == "true":
        return []
    listed = value if isinstance(value, list) else str(value or "").replace(",", " ").split()
    words = [str(word).lower() for word in listed]
    strange = [word for word in words if word not in WORDS]
    if strange:
        fix = f"true, or words of {', '.join(WORDS)}"
        raise SpecError(InputProblem(f"fsdp: {strange[0]} is not read", fix))
    return words


def fsdp_launch(section: Settings, words: list[str], version: int) -> dict[str, Any]:
    """Return Accelerate's launch configuration of a section without prefixes, and words beside it.

    Raises `SpecError` for a setting that FSDP has not.
    """
    for key, value in section.items():
        if key not in OF_BLOCK | SAME | {"cpu_offload"} or (key == "xla" and not is_off(value)):
            fix = "leave it out"
            raise SpecError(InputProblem(f"fsdp_config.{key} {value} is not read", fix))
    block = {f"fsdp_{key}": value for key, value in section.items() if key in OF_BLOCK}
    offloads = [section.get("cpu_offload"), "offload" in words, block.get("fsdp_offload_params")]
    if any(not is_off(value) for value in offloads):
        block["fsdp_offload_params"] = True
    strategy = next((word for word in words if word.upper() in STRATEGIES), "")
    key = "fsdp_reshard_after_forward"
    if strategy and version == 2:
        block.setdefault(key, strategy == "full_shard")
    elif strategy and "fsdp_sharding_strategy" not in block:
        block.setdefault(key, strategy.upper())
    return {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_version": version, **block},
    }


def _version(value: object) -> int:
    if str(value).strip() not in ("1", "2"):
        message = f"fsdp_config.version: expected 1 or 2, got {str(value)[:20]}"
        raise SpecError(InputProblem(message))
    return int(str(value))


def _section(settings: Settings, find: FindFile) -> dict[str, Any]:
    """Return `fsdp_config` without prefixes: a section, or the JSON file that it names."""
    named = settings.get("fsdp_config")
    if isinstance(named, str) and named.strip():
        section = _named_section(named, find)
    else:
        section = {
            key.removeprefix("fsdp_config."): value
            for key, value in settings.items()
            if key.startswith("fsdp_config.")
        }
    return {key.removeprefix("fsdp_"): value for key, value in section.items()}


def _named_section(name: str, find: FindFile) -> dict[str, Any]:
    text = name if name.lstrip().startswith("{") else find(name)
    if text is None:
        fix = "put it beside this file"
        raise SpecError(InputProblem(f"fsdp_config names {name}, which cannot be read", fix))
    try:
        data = json.loads(text, parse_int=_number)
    except ValueError as error:
        raise SpecError(InputProblem(f"fsdp_config: no JSON ({error})", "", name)) from None
    if not isinstance(data, dict):
        raise SpecError(InputProblem("fsdp_config: expected a section", "", name))
    return data


def _number(text: str) -> int:
    if len(text) > len(str(MOST_NUMBER)):
        raise ValueError("a number beyond 1e18")
    return int(text)


def axolotl_launch(settings: Settings, _: FindFile) -> dict[str, Any] | None:
    """Return the FSDP section, or the file of DeepSpeed, as Accelerate's file has them.

    FSDP1 where no version is said. Degrees are those of Accelerate's mesh, which FSDP2 alone has
    here. Source: axolotl 0.19.0, utils/distributed.py (_get_parallel_config_kwargs),
    utils/schemas/validation.py (check_fsdp_version_in_fsdp_config).
    """
    degrees = _degrees(settings)
    section = _section(settings, lambda _: None)
    words = words_of(settings.get("fsdp"))
    is_sharded = bool(section) or not is_off(settings.get("fsdp"))
    inner = section.pop("version", None)
    version = _version(settings.get("fsdp_version") or inner or 1)
    if named := settings.get("deepspeed"):
        _refuse_degrees(degrees, "with DeepSpeed")
        of_deepspeed = {"deepspeed_config_file": str(named)}
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": of_deepspeed}
    if not is_sharded:
        _refuse_degrees(degrees, "without FSDP2")
        return {"distributed_type": "MULTI_GPU"}
    if version != 2:
        _refuse_degrees(degrees, "without FSDP2")
        return fsdp_launch(section, words, version)
    data = fsdp_launch(section, words, version)
    if not degrees:
        return data
    sizes = {f"parallelism_config_{name}_size": size for name, size in degrees.items()}
    data["parallelism_config"] = sizes
    if settings.get("dp_shard_size") and settings.get("dp_replicate_size"):
        world = 1
        for size in degrees.values():
            world *= int(size)
        data["num_processes"] = world
    return data


def _degrees(settings: Settings) -> dict[str, int]:
    """Return the degrees that a file states, by their names in Accelerate's mesh."""
    older = settings.get("sequence_parallel_degree")
    stated = {name: settings.get(key) for name, key in SIZES.items()}
    stated["cp"] = stated["cp"] or older
    return {name: size for name, size in stated.items() if size}


def _refuse_degrees(degrees: Mapping[str, int], where: str) -> None:
    for name, size in degrees.items():
        if size > 1:
            message = f"axolotl: {SIZES[name]} {size} {where} is not read"
            fix = f"fsdp_version: 2 with fsdp_config, or {SIZES[name]} 1"
            raise SpecError(InputProblem(message, fix))


SIZES = {
    "dp_shard": "dp_shard_size",
    "dp_replicate": "dp_replicate_size",
    "tp": "tensor_parallel_size",
    "cp": "context_parallel_size",
}
"""Degrees of axolotl by those of Accelerate."""
