"""Arguments of Hugging Face's Trainer, as they stand behind a training script or in a file."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.runs.shell_marks import shown, unresolved

BATCH, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
KNOWN = (
    BATCH, ACCUMULATION, "bf16", "fp16", "gradient_checkpointing", "max_seq_length",
    "model_max_length", "max_length", "block_size", "cutoff_len", "deepspeed",
    "deepspeed_config", "num_train_epochs", "max_steps", "model_name_or_path", "fsdp",
)  # fmt: skip
"""Arguments that matter here; their names come with dashes or underscores."""
LENGTHS = ("max_seq_length", "model_max_length", "max_length", "block_size", "cutoff_len",
           "seq_length", "seq_len")  # fmt: skip
"""Names under which scripts state the length of a sequence."""


def trainer_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return `--name value` and `--name=value` by name with underscores; a bare flag is true."""
    found: dict[str, Any] = {}
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not re.match(r"--[A-Za-z]", word):
            continue
        name, equals, value = word[2:].partition("=")
        if not equals and i < len(words) and not re.match(r"--[A-Za-z]", words[i]):
            value, equals = words[i], "="
            i += 1
        if equals and unresolved(value) and not re.search(r"\.\w+$", value):
            continue  # a file is looked for by its name, wherever its folder is
        found[name.replace("-", "_")] = _plain(shown(value)) if equals else True
    return found


def _plain(text: str) -> Any:
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
