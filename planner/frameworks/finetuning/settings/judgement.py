"""What a configuration sets that has no price: refused, said, or not understood."""

from collections.abc import Mapping
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.finetuning.settings.table import setting_table, shown_value
from planner.frameworks.finetuning.tuners import TUNERS
from planner.frameworks.optimizers import TRAINER_NAMES
from planner.frameworks.runs.existing_run import Doubt

PINNED = ("mbs", "pipeline_stages", "recompute", "recompute_layers")
"""What `--pin` says in the place of a file."""


def refuse_settings(tool: str, settings: Mapping[str, Any], source: str) -> None:
    """Raise `SpecError` for the first setting of a tool that changes what is not priced."""
    refusal = setting_table(tool).refusal(settings)
    if refusal is not None:
        key, value, rule = refusal
        message = f"{TUNERS[tool].title}: {key} {shown_value(value)} is not read: {rule.text}"
        raise SpecError(InputProblem(message, rule.fix, source))


def setting_notes(tool: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what of the settings is priced otherwise."""
    return setting_table(tool).notes(settings)


def setting_doubts(tool: str, settings: Mapping[str, Any]) -> tuple[Doubt, ...]:
    """Return the settings that are not understood."""
    tuner = TUNERS[tool]
    why = f"no setting of {tuner.title} {tuner.release} that is known here"
    return tuple(
        Doubt(f"{key} {shown_value(settings[key])}", why, "priced without it")
        for key in setting_table(tool).unknown(settings)
        if key not in PINNED
    )


def check_optimizer(title: str, stated: object, source: str) -> None:
    """Raise `SpecError` for an optimizer, by its name in the Trainer, that has no price."""
    if isinstance(stated, str) and stated and stated.lower() not in TRAINER_NAMES:
        message = f"{title}: optimizer {shown_value(stated)} is not read: its states have no price"
        raise SpecError(InputProblem(message, "AdamW, with states of 32 or 8 bits", source))


def optimizer_notes(stated: object, engine: str) -> tuple[str, ...]:
    """Return what of an optimizer is priced otherwise on an engine."""
    name = str(stated or "").lower()
    if engine == "deepspeed" and TRAINER_NAMES.get(name, "adam") != "adam":
        return (f"optimizer {name}: priced as adam; memory is overestimated",)
    if name.startswith("paged_"):
        text = "states that move to the host where memory is short are priced on the device"
        return (f"optimizer {name}: {text}; memory is overestimated",)
    return ()
