"""What a change of layout means in a framework's own words: flags, keys."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from costmodels.plans import SWITCHES, Layout
from costmodels.problem import Problem
from planner.frameworks.megatron.flags import flag_table
from planner.frameworks.runs.existing_run import ExistingRun

Words = dict[str, str]
"""Values by flag or key; a flag without a value has an empty text."""
Settings = dict[str, str | None]
"""The same, None for a flag or key that has to go."""


def framework_words(framework: str, layout: Layout, problem: Problem) -> Words:
    """Return the flags or keys that say a layout; {} where the framework has no words for it."""
    writer = _WRITERS.get(framework)
    try:
        return writer(layout, problem) if writer else {}
    except KeyError:  # the writers look words up: what a framework lacks has none
        return {}


def changed_settings(run: ExistingRun, old: Layout, new: Layout, problem: Problem) -> Settings:
    """Return what to set in a run, whose priced layout is `old`, to come to `new`.

    Values by flag or key, None for what has to go; {} where no words of the framework say it.
    What the run states already is left out, and what it states otherwise than `old` (its numbers
    did not divide) is said as well.
    """
    form = "torchtitan TOML" if run.format.endswith("(TOML)") else run.framework
    before, after = (framework_words(form, x, problem) for x in (old, new))
    if not before or not after:
        return {}
    if run.framework == "megatron":
        return _changed_flags(run, old, new, after)
    entries: Settings = {key: v for key, v in after.items() if before.get(key) != v}
    if run.layout.get("gbs") not in (None, new.gbs):
        entries |= {key: after[key] for key in BATCH_KEYS if key in after}
    entries |= {key: None for key in before if key not in after and key in run.settings}
    if NO_KEY in entries:
        return {}
    needed = {key: v for key, v in entries.items() if _is_needed(key, v, run)}
    in_launch_file = run.framework == "deepspeed" and run.format.startswith("Accelerate")
    return {ACCELERATE_KEYS.get(k, k): v for k, v in needed.items()} if in_launch_file else needed


def changed_words(run: ExistingRun, changes: Settings) -> tuple[str, ...]:
    """Return changes as a user writes them: `--tensor-model-parallel-size 4`, `drop KEY`."""
    out = []
    for key, value in changes.items():
        if run.settings.get(key) == "auto" and key in TRAINER_ARGUMENTS:
            out.append(f"--{TRAINER_ARGUMENTS[key]} {value}")
        else:
            out.append(f"drop {key}" if value is None else _shown(run.framework, key, value))
    return tuple(out)


TRAINER_ARGUMENTS = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""Arguments of the training script that fill a key of DeepSpeed that says `auto`."""
ACCELERATE_KEYS = {
    "zero_optimization.stage": "deepspeed_config.zero_stage",
    "gradient_accumulation_steps": "deepspeed_config.gradient_accumulation_steps",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
}
"""Keys of DeepSpeed under the names of Accelerate's launch file."""
BATCH_KEYS = ("training.global_batch_size", "train_batch_size", "gradient_accumulation_steps")
"""Keys that say the global batch."""
HABITS = re.compile(
    r"activation_checkpointing\.|zero_optimization\.(?!stage$|zero_hpz_partition_size$)"
)
"""Keys that our own files set beside the layout."""


def _is_needed(key: str, value: str | None, run: ExistingRun) -> bool:
    if HABITS.match(key):
        return False
    if value is None:
        return True
    stated_value = run.settings.get(key)
    if key == "train_batch_size" and stated_value is None:
        return False
    return stated_value is None or str(stated_value).lower() != value.strip('"').lower()


def _changed_flags(run: ExistingRun, old: Layout, new: Layout, after: Words) -> Settings:
    """Return the flags of what Megatron-LM is told otherwise than `new`, part by part.

    A part is told by several flags, of which the run may use others than we do: those go.
    """
    by_name, by_dest = flag_table()[1:]
    wanted = {by_name[name].dest: (name, value) for name, value in after.items()}
    entries: Settings = {}
    for fields, dests in MEGATRON_PARTS:
        if all(_same(run, new, name) for name in fields):
            continue
        for dest in dests:
            stated_value = run.settings.get(dest)
            if dest not in wanted:
                if stated_value not in (None, False) and not _is_implied(dest, new):
                    entries[by_dest[dest].flags[0]] = None
                continue
            name, value = wanted[dest]
            if stated_value is None or not _says(stated_value, name, value):
                entries[name] = value.strip("'")
    for dest, holds in NEEDS.items():
        if run.settings.get(dest) and holds(old) and not holds(new):
            entries[by_dest[dest].flags[0]] = None
    return entries


def _same(run: ExistingRun, new: Layout, name: str) -> bool:
    """Tell whether a run states a field of a layout as it is."""
    if name == "stage_layers":
        stated = run.layout.get("counts", new.stage_layers if new.pp == 1 else None)
        return stated is not None and tuple(stated) == new.stage_layers
    if name in ("zero", "dp_shard") and new.dp * new.cp == 1:
        return True
    value = getattr(new, name)
    if name == "recompute_layers" and run.settings.get("recompute_method") == "uniform":
        return bool(value == max(new.stage_layers))
    usual = {
        "dp_shard": value,
        "cp_comm": "",
        "zero": 0,
        "sp": False,
        "recompute_modules": (),
        "activation_offload_layers": 0,
        **SWITCHES,
    }.get(name, 1)
    return bool(run.layout.get(name, usual) == value)


def _is_implied(dest: str, new: Layout) -> bool:
    """Tell whether a flag may stay: Megatron-LM switches it off by itself."""
    return (dest == "sequence_parallel" and new.tp == 1) or (
        dest in ("expert_tensor_parallel_size", "cp_comm_type") and new.cp == new.etp == 1
    )


def _says(given: Any, name: str, value: str) -> bool:
    if isinstance(given, bool):
        return bool(given != name.startswith("--no-"))
    text = " ".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given)
    return text == value.strip("'")


MEGATRON_PARTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("tp",), ("tensor_model_parallel_size",)),
    (("sp",), ("sequence_parallel",)),
    (
        ("pp", "vpp", "stage_layers"),
        (
            "pipeline_model_parallel_size",
            "num_layers_per_virtual_pipeline_stage",
            "num_virtual_stages_per_pipeline_rank",
            "pipeline_model_parallel_layout",
            "decoder_first_pipeline_num_layers",
            "decoder_last_pipeline_num_layers",
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
            "microbatch_group_size_per_vp_stage",
        ),
    ),
    (
        ("cp", "cp_comm"),
        ("context_parallel_size", "cp_comm_type", "hierarchical_context_parallel_sizes"),
    ),
    (("ep", "etp"), ("expert_model_parallel_size", "expert_tensor_parallel_size")),
    (("mbs",), ("micro_batch_size",)),
    (("gbs",), ("global_batch_size",)),
    (
        ("recompute", "recompute_layers", "recompute_modules"),
        (
            "recompute_granularity",
            "recompute_method",
            "recompute_num_layers",
            "recompute_modules",
            "recompute_activations",
        ),
    ),
    (
        ("zero", "dp_shard"),
        (
            "use_distributed_optimizer",
            "use_megatron_fsdp",
            "use_torch_fsdp2",
            "data_parallel_sharding_strategy",
            "gradient_accumulation_fusion",
            "init_model_with_meta_device",
            "ckpt_format",
            "num_distributed_optimizer_instances",
        ),
    ),
    (("dp_overlap",), ("overlap_grad_reduce", "overlap_param_gather")),
    (("tp_overlap",), ("tp_comm_overlap",)),
    (
        ("optimizer_offload",),
        (
            "optimizer_cpu_offload",
            "use_precision_aware_optimizer",
            "optimizer_offload_fraction",
            "overlap_cpu_optimizer_d2h_h2d",
        ),
    ),
    (("activation_offload_layers",), ("cpu_offloading_num_layers",)),
)
"""Fields of a layout and the settings that say them."""
NEEDS: Mapping[str, Callable[[Layout], bool]] = {
    "overlap_param_gather": lambda x: x.zero > 0,
    "overlap_param_gather_with_optimizer_step": lambda x: x.zero > 0 and x.vpp > 1,
    "defer_embedding_wgrad_compute": lambda x: x.pp > 1,
    "distribute_saved_activations": lambda x: x.tp > 1 and not x.sp and x.recompute == "full",
    "overlap_moe_expert_parallel_comm": lambda x: (
        x.ep > 1 and x.recompute != "full" and (x.pp == 1 or x.vpp > 1)
    ),
    "delay_wgrad_compute": lambda x: x.ep > 1,
}
"""Settings that go where a layout is not what they need."""


def _shown(framework: str, key: str, value: str) -> str:
    if key.startswith("--"):
        return f"{key} {value}".strip()
    joint = ": " if framework in ("deepspeed", "fsdp2") else " = "
    return f"{key}{joint}{value}"


def _megatron(layout: Layout, problem: Problem) -> Words:
    from planner.frameworks.megatron.emitter import flag_groups

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

    from planner.frameworks.deepspeed.emitter import deepspeed_config
    from planner.frameworks.runs.settings import flattened

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

    from planner.frameworks.torchtitan.fields import batch, compiler, parallelism

    words = {f"parallelism.{key}": json.dumps(v) for key, v in parallelism(layout).items()}
    words |= {f"training.{key}": json.dumps(value) for key, value in batch(layout).items()}
    words |= {f"compile.{key}": json.dumps(value) for key, value in compiler(layout).items()}
    if layout.recompute == "full":
        some = layout.recompute_layers < max(layout.stage_layers)
        what = f"first {layout.recompute_layers} layers of a stage" if some else "full"
        return words | {"activation_checkpoint": what}
    return words | {"activation_checkpoint": layout.recompute}


def _torchtitan_toml(layout: Layout, problem: Problem) -> Words:
    """Return the keys of a job file; `NO_KEY` where no key says the recomputation."""
    import json

    from planner.frameworks.torchtitan.toml import recompute_keys

    words = _torchtitan(layout, problem)
    words.pop("parallelism.enable_sequence_parallel")
    if layout.tp_overlap:
        result = words.pop("compile.enable_async_tensor_parallel")
        words["parallelism.enable_async_tensor_parallel"] = result
    message = words.pop("activation_checkpoint")
    keys = recompute_keys(layout)
    if not keys:
        return words | {NO_KEY: message}
    return words | {f"activation_checkpoint.{key}": json.dumps(v) for key, v in keys.items()}


NO_KEY = "no key"
"""Stands for what a framework's file cannot say."""


def _accelerate(layout: Layout, problem: Problem) -> Words:
    import json

    from planner.frameworks.fsdp2.emitter import launch_config, trainer_args
    from planner.frameworks.runs.settings import flattened

    config = launch_config(layout, problem.job, problem.pool)
    words = {key: json.dumps(value) for key, value in flattened(config).items()}
    return words | {k: json.dumps(v) for k, v in trainer_args(layout, problem.job).items()}


_WRITERS: dict[str, Callable[[Layout, Problem], Words]] = {
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "torchtitan": _torchtitan,
    "torchtitan TOML": _torchtitan_toml,
    "fsdp2": _accelerate,
}
