"""What a change of layout means in a framework's own words: flags, keys."""

from collections.abc import Callable, Mapping
from typing import Any

from costmodels.plans import Layout
from costmodels.problem import Problem

Words = dict[str, str]
"""Values by flag or key; a flag without a value has an empty text."""


def framework_words(framework: str, layout: Layout, problem: Problem) -> Words:
    """Return the flags or keys that say a layout; {} where the framework has no words for it."""
    writer = _WRITERS.get(framework)
    try:
        return writer(layout, problem) if writer else {}
    except KeyError:  # the writers look words up: what a framework lacks has none
        return {}


def changed_words(
    framework: str,
    old: Layout,
    new: Layout,
    problem: Problem,
    written: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Return what to write to come from one layout to the other: `--tensor-...-size 4`, `drop X`.

    `written` are the settings of the run: what is not among them need not be dropped, what stands
    there already need not be written, and other flags for the same thing go.
    """
    before, after = (framework_words(framework, x, problem) for x in (old, new))
    if not before or not after:
        return ()
    given = written or {}
    out = [
        _shown(framework, k, v) for k, v in after.items()
        if before.get(k) != v and not _stands(given, _name(k), v)
    ]  # fmt: skip
    others = _same_meaning(old, new, given) if framework == "megatron" else []
    for key in dict.fromkeys([*before, *others]):
        if key not in after and (written is None or _name(key) in written):
            out.append(f"drop {key}")
    return tuple(out)


_GROUPS = {
    ("pp", "vpp", "stage_layers"): (
        "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
        "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers", "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
    ),
    ("recompute", "recompute_layers"): (
        "recompute_activations", "recompute_granularity", "recompute_method",
        "recompute_num_layers", "recompute_modules",
    ),
    ("zero", "shard"): (
        "use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2",
        "data_parallel_sharding_strategy", "num_distributed_optimizer_instances",
    ),
}  # fmt: skip
"""Flags of Megatron-LM that say the same axes in several ways."""


def _same_meaning(old: Layout, new: Layout, written: Mapping[str, Any]) -> list[str]:
    """Return the flags of a run that say what a change of layout says otherwise."""
    return [
        "--" + name.replace("_", "-")
        for axes, names in _GROUPS.items()
        if any(getattr(old, axis) != getattr(new, axis) for axis in axes)
        for name in names
        if written.get(name)
    ]


def _stands(written: Mapping[str, Any], name: str, value: str) -> bool:
    present = written.get(name)
    return present is True if value == "" else present is not None and str(present) == value


def _name(key: str) -> str:
    return key.lstrip("-").replace("-", "_") if key.startswith("--") else key


def _shown(framework: str, key: str, value: str) -> str:
    if key.startswith("--"):
        return f"{key} {value}".strip()
    joint = ": " if framework in ("deepspeed", "fsdp2") else " = "
    return f"{key}{joint}{value}"


def _megatron(layout: Layout, problem: Problem) -> Words:
    from planner.emit.megatron import flag_groups

    words: Words = {}
    last = ""
    for _, group in flag_groups(layout, problem.shape, problem.job):
        for word in group:
            if word.startswith("--"):
                last = word
                words[last] = ""
            else:
                words[last] = f"{words[last]} {word}".strip()
    return words


def _deepspeed(layout: Layout, problem: Problem) -> Words:
    import json

    from planner.emit.deepspeed import deepspeed_config
    from planner.runs.settings import flattened

    config = deepspeed_config(layout, problem.shape, problem.job)
    words = {key: json.dumps(value) for key, value in flattened(config).items()}
    if layout.pp > 1:
        words["pipeline stages"] = str(layout.pp)
    if layout.recompute != "none":
        kind = layout.recompute
        layers = f" of {layout.recompute_layers} layers" if kind == "full" else ""
        words["recomputation in the script"] = f"{kind}{layers}"
    return words


def _torchtitan(layout: Layout, problem: Problem) -> Words:
    import json

    from planner.emit.torchtitan_words import batch, parallelism

    words = {f"parallelism.{key}": json.dumps(v) for key, v in parallelism(layout).items()}
    words |= {f"training.{key}": json.dumps(value) for key, value in batch(layout).items()}
    if layout.recompute == "full":
        some = layout.recompute_layers < max(layout.stage_layers)
        what = f"first {layout.recompute_layers} layers of a stage" if some else "full"
        return words | {"activation_checkpoint": what}
    return words | {"activation_checkpoint": layout.recompute}


def _accelerate(layout: Layout, problem: Problem) -> Words:
    import json

    from planner.emit.accelerate import launch_config, trainer_args
    from planner.runs.settings import flattened

    config = launch_config(layout, problem.job, problem.pool)
    words = {key: json.dumps(value) for key, value in flattened(config).items()}
    return words | {k: json.dumps(v) for k, v in trainer_args(layout, problem.job).items()}


_WRITERS: dict[str, Callable[[Layout, Problem], Words]] = {
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "torchtitan": _torchtitan,
    "fsdp2": _accelerate,
}
