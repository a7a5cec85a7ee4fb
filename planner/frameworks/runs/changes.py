"""What a change of layout is in the settings of a run: flags, keys."""

import re
from dataclasses import replace

from costmodels.plans import Layout
from costmodels.problem import Problem
from planner.frameworks.framework import Framework
from planner.frameworks.registry import framework
from planner.frameworks.runs.existing_run import NO_KEY, ExistingRun
from searches.frameworks.registry import load

Settings = dict[str, str | None]
"""Values by flag or key: a flag without a value has an empty text, one that has to go None."""


def _plan_settings(
    record: Framework, form: str, layout: Layout, problem: Problem
) -> dict[str, str]:
    """Return the flags or keys of a layout in a format; {} where the framework has none for it."""
    path = record.settings.get(form, record.settings.get("", ""))
    try:
        settings: dict[str, str] = load(path)(layout, problem) if path else {}
    except KeyError:  # the writers look values up: what a framework lacks has none
        return {}
    return settings


def changed_settings(run: ExistingRun, old: Layout, new: Layout, problem: Problem) -> Settings:
    """Return what to set in a run, whose priced layout is `old`, to come to `new`.

    Values by flag or key, None for what has to go; {} where no words of the framework say it.
    What the run states already is left out, and what it states otherwise than `old` (its numbers
    did not divide) is said as well.
    """
    record = framework(run.framework)
    plans = (_in_samples(x, run) for x in (old, new))
    before, after = (_plan_settings(record, run.format, x, problem) for x in plans)
    if not before or not after:
        return {}
    if record.changes:
        changes: Settings = load(record.changes)(run, old, new, after)
        return changes
    entries: Settings = {key: v for key, v in after.items() if before.get(key) != v}
    if run.layout.get("gbs") not in (None, new.gbs):
        entries |= {key: after[key] for key in BATCH_KEYS if key in after}
    entries |= {key: None for key in before if key not in after and key in run.settings}
    if NO_KEY in entries:
        return {}
    needed = {key: v for key, v in entries.items() if _is_needed(key, v, run)}
    if run.has_named_keys_alone and not needed.keys() <= run.key_names.keys():
        return {}
    named = ((run.key_names.get(key, key), value) for key, value in needed.items())
    needed = {key: value for key, value in named if key}
    if NO_KEY in needed:
        return {}
    in_launch_file = run.framework == "deepspeed" and run.format.startswith("Accelerate")
    return {ACCELERATE_KEYS.get(k, k): v for k, v in needed.items()} if in_launch_file else needed


def _in_samples(layout: Layout, run: ExistingRun) -> Layout:
    """Return a layout with batches as the files of a run count them."""
    n = run.sample_sequences
    return replace(layout, mbs=layout.mbs // n, gbs=layout.gbs // n) if n > 1 else layout


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
    run_value = run.settings.get(key)
    if key == "train_batch_size" and run_value is None:
        return False
    return run_value is None or str(run_value).lower() != value.strip('"').lower()


def _shown(framework_name: str, key: str, value: str) -> str:
    if key.startswith("--"):
        return f"{key} {value}".strip()
    return f"{key}{framework(framework_name).joint}{value}"
