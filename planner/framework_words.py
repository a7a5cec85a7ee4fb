"""What a change of layout means in a framework's own words: flags, keys."""

from collections.abc import Callable, Mapping
from typing import Any

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob

Words = dict[str, str]
"""Values by flag or key; a flag without a value has an empty text."""


def framework_words(framework: str, layout: Layout, shape: ModelShape, job: TrainingJob) -> Words:
    """Return the flags or keys that say a layout; {} where the framework has no writer."""
    writer = _WRITERS.get(framework)
    return writer(layout, shape, job) if writer else {}


def changed_words(
    framework: str,
    old: Layout,
    new: Layout,
    shape: ModelShape,
    job: TrainingJob,
    written: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Return what to write to come from one layout to the other: `--tensor-...-size 4`, `drop X`.

    `written` are the settings of the run: what is not among them need not be dropped.
    """
    before, after = (framework_words(framework, x, shape, job) for x in (old, new))
    out = [_shown(framework, k, v) for k, v in after.items() if before.get(k) != v]
    for key in before:
        if key not in after and (written is None or _name(key) in written):
            out.append(f"drop {key}")
    return tuple(out)


def _name(key: str) -> str:
    return key.lstrip("-").replace("-", "_") if key.startswith("--") else key


def _shown(framework: str, key: str, value: str) -> str:
    if key.startswith("--"):
        return f"{key} {value}".strip()
    joint = ": " if framework in ("deepspeed", "fsdp2") else " = "
    return f"{key}{joint}{value}"


def _megatron(layout: Layout, shape: ModelShape, job: TrainingJob) -> Words:
    from planner.emit.megatron import flag_groups

    words: Words = {}
    last = ""
    for _, group in flag_groups(layout, shape, job):
        for word in group:
            if word.startswith("--"):
                last = word
                words[last] = ""
            else:
                words[last] = f"{words[last]} {word}".strip()
    return words


def _deepspeed(layout: Layout, shape: ModelShape, job: TrainingJob) -> Words:
    import json

    from planner.emit.deepspeed import deepspeed_config
    from planner.runs.settings import flattened

    words = {k: json.dumps(v) for k, v in flattened(deepspeed_config(layout, shape, job)).items()}
    if layout.pp > 1:
        words["pipeline stages"] = str(layout.pp)
    if layout.recompute != "none":
        kind = layout.recompute
        layers = f" of {layout.recompute_layers} layers" if kind == "full" else ""
        words["recomputation in the script"] = f"{kind}{layers}"
    return words


_WRITERS: dict[str, Callable[[Layout, ModelShape, TrainingJob], Words]] = {
    "megatron": _megatron,
    "deepspeed": _deepspeed,
}
