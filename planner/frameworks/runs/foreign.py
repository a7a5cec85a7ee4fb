"""Configurations of trainers that are not read: each is told by its keys, and named."""

import re

from planner.errors import InputProblem, SpecError

KINDS: tuple[tuple[str, tuple[tuple[str, ...], ...], str], ...] = (
    (
        "LLaMA-Factory",
        (
            ("model_name", "model"),
            ("finetuning_type", "template", "cutoff_len", "stage", "init_config", "train_dataset"),
        ),
        "the file with model_name_or_path, of release 0.9, is read",
    ),
    (
        "torchtune",
        (("_component_",), ("model", "recipe", "optimizer", "tokenizer")),
        "one with `model:`, `tokenizer:` and `checkpointer:`, which every recipe has, is read",
    ),
    (
        "GPT-NeoX",
        (
            ("pipe_parallel_size", "model_parallel_size"),
            (
                "num_layers",
                "hidden_size",
                "zero_optimization",
                "train_iters",
                "data_path",
                "train_batch_size",
                "attention_config",
            ),
        ),
        "write its sizes as flags of Megatron-DeepSpeed",
    ),
    (
        "Megatron-Bridge",
        (("train", "model"), ("_target_",), ("ddp", "dist", "optimizer", "checkpoint")),
        "check the flags of Megatron-LM that it stands for (planner emit --for megatron)",
    ),
    (
        "NeMo",
        (("trainer",), ("model",), ("exp_manager", "run")),
        "write its sizes as flags of Megatron-LM",
    ),
    ("veRL", (("actor_rollout_ref",),), "reinforcement learning is not modelled"),
    (
        "ms-swift",
        (
            ("model", "model_type", "train_type", "tuner_type"),
            ("torch_dtype", "dataset"),
            ("deepspeed", "tensor_model_parallel_size", "per_device_train_batch_size"),
        ),
        "write it as the options of `megatron sft`",
    ),
)
"""Trainers, groups of keys of each of which a file has one, and what can be done instead."""


def foreign_kind(keys: set[str]) -> tuple[str, str]:
    """Return the trainer whose keys a file has, and what to do; ("", "") for none of them."""
    for name, groups, instead in KINDS:
        if all(keys & set(group) for group in groups):
            return name, instead
    return "", ""


def refuse_foreign(text: str, source: str) -> None:
    """Raise `SpecError` for a configuration of a trainer that is known and not read."""
    name, instead = foreign_kind(_keys(text))
    if name:
        article = "an" if name[0] in "aeiou" else "a"
        message = f"is {article} {name} file, which planner does not read yet"
        raise SpecError(InputProblem(message, instead, source))


def _keys(text: str) -> set[str]:
    """Return the keys at the top of a YAML or JSON file, dashes as underscores.

    Also those of the sections that decide what a file is: `_component_` and `_target_` below.
    """
    if re.search(r"^\s*\{\s*$", text, re.M):  # GPT-NeoX files are YAML in braces
        return {
            key.replace("-", "_") for key in re.findall(r"^\s*[\"']([\w-]+)[\"']\s*:", text, re.M)
        }
    result = set(re.findall(r"^(?:\? )?[\"']?([A-Za-z_][\w-]*)[\"']?\s*:", text, re.M))
    result |= set(re.findall(r"\b(_component_|_target_)\s*:", text))
    return {key.replace("-", "_") for key in result}
