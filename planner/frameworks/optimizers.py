"""What files call optimizers: read as fields of a job, and written."""

from collections.abc import Mapping
from typing import Any, Protocol

from searches.frameworks.releases import version_key

DEEPSPEED_TYPES: Mapping[str, str] = {
    "adam": "adam",
    "adamw": "adam",
    "lion": "lion",
}
"""Optimizers by `optimizer.type` of DeepSpeed, in small letters."""
TRAINER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_torch_xla"), "adam"),
    **dict.fromkeys(("adamw_hf", "adamw_apex_fused", "adamw_torch_npu_fused"), "adam"),
    **dict.fromkeys(("paged_adamw", "paged_adamw_32bit"), "adam"),
    **dict.fromkeys(("adamw_torch_8bit", "adamw_bnb_8bit", "adamw_8bit"), "adam-8bit"),
    "paged_adamw_8bit": "adam-8bit",
}
"""The same by `optim` of transformers' TrainingArguments."""
TRAINER_OPTIM: Mapping[str, str] = {
    "adam": "adamw_torch_fused",
    "adam-8bit": "adamw_torch_8bit",
}
"""What is written there."""


def named_optimizer(
    stated: object, names: Mapping[str, str], own: str, notes: list[str]
) -> dict[str, Any]:
    """Return the field `optimizer` that a file states, where it is not the model file's own.

    One that is not known is noted, and the model file's own is priced.
    """
    if not isinstance(stated, str) or not stated:
        return {}
    name = names.get(stated.lower())
    if name is None:
        notes.append(f"optimizer {stated}: priced as {own}")
        return {}
    return {} if name == own else {"optimizer": name}


OPTIMIZER_DESTS = (
    "optimizer",
    "muon_num_ns_steps",
    "muon_tp_mode",
    "muon_scalar_optimizer",
    "use_layer_wise_param_layout",
)
"""Settings that say the optimizer."""
NAMES: Mapping[str, str] = {
    "adam": "adam",
    "sgd": "sgd",
    "muon": "muon",
    "dist_muon": "muon",
    "adaptive_muon": "muon",
    "soap": "soap",
}
"""Optimizers that are priced, by their name there."""
NOTES: Mapping[str, str] = {
    "adaptive_muon": "priced as Muon; its second moments are not: memory is underestimated",
    "lion": "priced as Adam; with states for matrices alone memory is overestimated",
}
SHARED_OUT = "dist_muon"
"""The name that shares whole matrices out by itself."""


class Settings(Protocol):
    """Parsed flags."""

    release: str

    def get(self, dest: str) -> Any:
        """Return a setting, its default where it is not given."""


def optimizer_fields(settings: Settings) -> dict[str, Any]:
    """Return what flags say of the optimizer, in fields of `training:`; usual ones left out."""
    name = NAMES.get(str(settings.get("optimizer")), "adam")
    fields: dict[str, Any] = {"optimizer": name}
    if name == "muon" and (muon := muon_fields(settings)):
        fields["muon"] = muon
    return fields


def muon_fields(settings: Settings) -> dict[str, Any]:
    """Return the section `muon:` that flags say, without what is the planner's own default."""
    usual = {"num_ns_steps": 5, "tp_mode": "duplicated", "scalar_optimizer": "adam"}
    stated = {name: settings.get(f"muon_{name}") for name in usual}
    section = {k: v for k, v in stated.items() if v is not None and v != usual[k]}
    if settings.get("muon_use_syrk"):
        section["use_syrk"] = True
    if not has_param_layout(settings):
        section["param_layout"] = False
    return section


def has_param_layout(settings: Settings) -> bool:
    """Tell whether shards are aligned to matrices: from release 0.18 on, unless it is refused."""
    is_old = bool(settings.release) and version_key(settings.release) < version_key("0.18")
    return not is_old and settings.get("use_layer_wise_param_layout") is not False


def optimizer_notes(settings: Settings) -> list[str]:
    """Return what of the optimizer is not priced as it is."""
    name = str(settings.get("optimizer"))
    if name in NOTES:
        return [f"optimizer {name}: {NOTES[name]}"]
    return [] if name in NAMES else [f"optimizer {name}: priced as Adam"]
