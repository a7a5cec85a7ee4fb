"""Recipes of torchtune 0.6.1: which train as their configuration says, and how one is started.

`tune run [options of torchrun] RECIPE --config CONFIG key=value ~key`. Source: torchtune 0.6.1,
_recipe_registry.py, config/_parse.py and config/_utils.py (_merge_yaml_and_cli_args).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.shell.marks import unmarked, unresolved
from planner.specs.yaml.document import parse_yaml

TRAINING = (
    *("full_finetune_single_device", "full_finetune_distributed"),
    *("lora_finetune_single_device", "lora_finetune_distributed"),
    *("lora_dpo_single_device", "lora_dpo_distributed", "full_dpo_distributed"),
)
"""Recipes that are read: their configurations say all that is priced."""
OTHERS: Mapping[str, str] = {
    "eleuther_eval": "not a training run: it evaluates a model",
    "generate": "not a training run: it generates text",
    "quantize": "not a training run: it quantizes a model",
    "knowledge_distillation_*": "distillation, with a teacher beside the model, has no price",
    "qat_*": "training with fake quantization (QAT) has no price",
    "ppo_*": "reinforcement learning is not modelled",
    "grpo_*": "reinforcement learning is not modelled",
    "early_exit_*": "layers that are skipped have no price",
    "generate_v2*": "not a training run: it generates text",
    "lora_finetune_distributed_multi_dataset": "several data sets with a loader are not read",
}
"""Why other recipes are not read, by their names without `dev/`."""
CONFIG = re.compile(r"[\w.-]+/[\w.-]+")
"""A configuration that torchtune ships, as `tune ls` names it."""


def recipe_of(script: str) -> str:
    """Return the recipe that a script is, without folder and ending; empty for another script."""
    name = unmarked(script).rsplit("/", 1)[-1].removesuffix(".py")
    return name if name in TRAINING or _why_not(name) else ""


def _why_not(name: str) -> str:
    for pattern, why in OTHERS.items():
        if re.fullmatch(pattern.replace("*", r"\w*"), name):
            return why
    return ""


def check_recipe(script: str, source: str) -> None:
    """Raise `SpecError` for a recipe whose runs are not read."""
    name = recipe_of(script)
    why = _why_not(name) if name else ""
    if why:
        fix = f"a run of {', '.join(TRAINING[:4])}"
        raise SpecError(InputProblem(f"torchtune: recipe {name} is not read: {why}", fix, source))


def unfit_model(script: str, adapted: bool) -> tuple[str, ...]:
    """Return that a recipe is not for a model with adapters, or for one without; () where it is.

    Recipes of LoRA read `model.lora_rank` as they start, full ones load every weight of the model
    from the checkpoint, which has none of adapters (torchtune 0.6.1, recipes/lora_finetune_*.py
    and full_finetune_*.py).

    >>> unfit_model("lora_finetune_distributed", adapted=False)
    ('recipe lora_finetune_distributed with a model without adapters: full_finetune_distributed',)
    """
    name = recipe_of(script)
    kind, _, rest = name.partition("_")
    if kind == "lora" and not adapted:
        return (f"recipe {name} with a model without adapters: full_{rest}",)
    if kind == "full" and adapted:
        return (f"recipe {name} with a model with adapters: lora_{rest}",)
    return ()


def config_of(argv: Sequence[str]) -> str:
    """Return the configuration that words behind a recipe name; empty without one.

    >>> config_of(["--config=a.yaml", "batch_size=2"])
    'a.yaml'
    """
    for i, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == "--config":
            return value if equals else "".join(argv[i + 1 : i + 2])
    return ""


def missing_config(name: str, source: str) -> SpecError:
    """Return the error for a configuration that is no file here."""
    text = unmarked(name)
    if not text:
        fix = "tune run RECIPE --config my.yaml"
        return SpecError(InputProblem("torchtune: no --config", fix, source))
    if CONFIG.fullmatch(text) and not text.endswith((".yaml", ".yml")):
        message = f"{text} is a configuration that torchtune ships, not a file here"
        fix = f"tune cp {text} my.yaml, then --config my.yaml"
        return SpecError(InputProblem(message, fix, source))
    message = f"names {text}, which cannot be read as a configuration of torchtune"
    fix = "put it beside this file, with `model:`, `tokenizer:` and `checkpointer:`"
    return SpecError(InputProblem(message, fix, source))


def overridden(data: Mapping[str, Any], argv: Sequence[str], source: str) -> dict[str, Any]:
    """Return a configuration with what its command line changes: `key=value` and `~key`.

    A component goes by its section: `optimizer=torch.optim.SGD`. Raises `SpecError` for what
    torchtune refuses, and for a value that only a shell knows.
    """
    changed = {**data}
    for word in _overrides(argv):
        if names := unresolved(word):
            message = f"{unmarked(word)} depends on {', '.join(names)}, which nothing sets"
            fix = " ".join(f"--env {name}=..." for name in names)
            raise SpecError(InputProblem(message, fix, source))
        key, equals, value = word.partition("=")
        if word.startswith("~"):
            changed = _without(changed, key[1:], source)
        elif not equals or "=" in value or word.startswith("-"):
            message = f"changes are written as key=value, got {word}"
            raise SpecError(InputProblem(message, "such as batch_size=2", source))
        else:
            changed = _with(changed, key.split("."), None if value == "None" else _read(value))
    return changed


def _overrides(argv: Sequence[str]) -> list[str]:
    """Return the words behind the configuration that change it."""
    words, skips = [], False
    for word in argv:
        if skips or word.startswith("--config="):
            skips = False
        elif word == "--config":
            skips = True
        else:
            words.append(word)
    return words


def _read(text: str) -> Any:
    return parse_yaml(text, "").data if text.strip() else None


def _with(data: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    first, rest = path[0], path[1:]
    below = data.get(first)
    section = below if isinstance(below, Mapping) else {}
    if rest:
        return {**data, first: _with(section, rest, value)}
    if "_component_" in section:
        return {**data, first: {**section, "_component_": value}}
    return {**data, first: value}


def _without(data: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    first, dot, rest = key.partition(".")
    below = data.get(first)
    if first not in data or (dot and not isinstance(below, Mapping)):
        message = f"~{key} takes away a key that is not there"
        raise SpecError(InputProblem(message, "leave it out", source))
    if dot and isinstance(below, Mapping):
        return {**data, first: _without(below, rest, source)}
    return {name: value for name, value in data.items() if name != first}
