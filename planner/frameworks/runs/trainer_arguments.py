"""Arguments of Hugging Face's Trainer, as they stand behind a training script or in a file."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.frameworks.shell.marks import unmarked, unresolved

BATCH, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
KNOWN = (
    BATCH,
    ACCUMULATION,
    "bf16",
    "fp16",
    "gradient_checkpointing",
    "max_seq_length",
    "model_max_length",
    "max_length",
    "block_size",
    "cutoff_len",
    "deepspeed",
    "deepspeed_config",
    "num_train_epochs",
    "max_steps",
    "model_name_or_path",
    "fsdp",
)
"""Arguments that matter here; their names come with dashes or underscores."""
LENGTHS = (
    "max_seq_length",
    "model_max_length",
    "max_length",
    "block_size",
    "cutoff_len",
    "seq_length",
    "seq_len",
)
"""Names under which scripts state the length of a sequence."""


def trainer_arguments(tokens: Sequence[str]) -> dict[str, Any]:
    """Return `--name value` and `--name=value` by name with underscores; a bare flag is true."""
    entries: dict[str, Any] = {}
    i = 0
    while i < len(tokens):
        word = tokens[i]
        i += 1
        if not re.match(r"--[A-Za-z]", word):
            continue
        name, equals, value = word[2:].partition("=")
        if not equals and i < len(tokens) and not re.match(r"--[A-Za-z]", tokens[i]):
            value, equals = tokens[i], "="
            i += 1
        if equals and unresolved(value) and not re.search(r"\.\w+$", value):
            continue  # a file is looked for by its name, wherever its folder is
        entries[name.replace("-", "_")] = plain_value(unmarked(value)) if equals else True
    return entries


ADAPTERS = re.compile(r"(use_|enable_)?(q?lora|peft|dora)(_enable|_dim|_r|_rank)?|load_in_[48]bit")
"""Arguments that train adapters, or keep weights in fewer bits."""


def adapters(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note where only adapters are trained: all weights are priced."""
    named = [
        name
        for name, value in arguments.items()
        if ADAPTERS.fullmatch(name) and value not in (False, 0, "", "none")
    ]
    named += [
        name
        for name in ("finetuning_type", "train_type", "tuner_type")
        if "lora" in str(arguments.get(name, ""))
    ]
    text = "adapters are not modelled: memory is overestimated"
    return (f"{', '.join('--' + name for name in named)}: {text}",) if named else ()


def trainer_configuration(arguments: Mapping[str, Any], fsdp_config: str = "") -> str:
    """Return `--fsdp "full_shard auto_wrap"` and its file as the Accelerate file of the same job.

    Without `--fsdp` every rank holds all weights (DDP).
    """
    data: dict[str, Any] = {"distributed_type": "MULTI_GPU"}
    kind = next((k for k in ("bf16", "fp16") if arguments.get(k) is True), "no")
    tokens = str(arguments.get("fsdp") or "").split()
    if tokens and tokens[0] not in ("False", "no"):
        strategy = next((w for w in tokens if w in STRATEGIES), "full_shard")
        inner: dict[str, Any] = {"fsdp_version": 1, "fsdp_sharding_strategy": strategy.upper()}
        more = _object(fsdp_config)
        checkpointing = more.get(
            "activation_checkpointing", more.get("fsdp_activation_checkpointing", False)
        )
        inner |= {
            "fsdp_activation_checkpointing": bool(checkpointing),
            "fsdp_offload_params": "offload" in tokens,
        }
        data |= {"distributed_type": "FSDP", "fsdp_config": inner}
    return json.dumps({**data, "mixed_precision": kind})


STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""Words of `--fsdp` that say how weights are sharded."""


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text) if text.strip() else {}
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def plain_value(text: str) -> Any:
    """Return a word of a command as what it says: a whole number, true or false, or the word."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return text


def stated_length(arguments: Mapping[str, Any]) -> int | None:
    """Return the tokens of a sequence where the arguments state them."""
    for name in LENGTHS:
        value = arguments.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
