"""Adapters in recipes of Megatron-Bridge: the section `peft`, written and read back."""

from collections.abc import Mapping
from typing import Any

from costmodels.shapes import ModelShape
from costmodels.tuning.records import TuningJob
from costmodels.tuning.targets import EXPERTS, FUSED
from planner.errors import InputProblem, SpecError
from planner.specs.inputs import ModelInput

WHOLE, PARTS = "LoRA", "CanonicalLoRA"
"""Classes of adapters beside Megatron's fused layers, and beside the parts of these."""
OTHER_WEIGHTS = "DoRA"
"""A class of adapters that is told but not priced."""
ARGUMENTS = ("target_modules", "exclude_modules", "canonical_mapping", "dim", "alpha", "dropout")
"""What both classes take by place. Source: Megatron-Bridge 0.6.2, peft/module_matcher.py."""
MODULES: Mapping[str, str] = {WHOLE: "lora", PARTS: "canonical_lora"}
"""Modules of `megatron.bridge.peft` that hold them."""
WHOLE_NAMES: Mapping[str, str] = {
    "qkv": "linear_qkv",
    "o": "linear_proj",
    "gate_up": "linear_fc1",
    "down": "linear_fc2",
    "q": "linear_q_proj",
    "q_down": "linear_q_down_proj",
    "q_up": "linear_q_up_proj",
    "kv_down": "linear_kv_down_proj",
    "kv_up": "linear_kv_up_proj",
}
"""Linear layers of megatron-core; `linear_q_proj` is latent attention's."""
PART_NAMES: Mapping[str, str] = {
    "q": "linear_q",
    "k": "linear_k",
    "v": "linear_v",
    "gate": "linear_fc1_gate",
    "up": "linear_fc1_up",
}
"""Parts of fused layers, as `CanonicalLoRA` calls them."""
DEFAULT_TARGETS: Mapping[str, tuple[str, ...]] = {
    WHOLE: ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    PARTS: (*PART_NAMES.values(), "linear_proj", "linear_fc2"),
}
DEFAULTS: Mapping[str, Any] = {"dim": 32, "alpha": 32, "dropout": 0.0}
"""What both classes take by themselves. Source: Megatron-Bridge 0.6.2, peft/lora.py."""


def split_targets(tuning: TuningJob, shape: ModelShape) -> list[str]:
    """Return the targets that are parts of a fused layer of megatron-core."""
    whole = {"q"} if shape.latent else set()
    whole |= set() if shape.gated else {"up"}  # the first product alone is the whole layer
    return [x for x in tuning.targets if x in PART_NAMES and x not in whole]


def adapter_class(tuning: TuningJob, shape: ModelShape) -> str:
    """Return the class whose adapters are those of a job."""
    return PARTS if split_targets(tuning, shape) else WHOLE


def adapter_fields(tuning: TuningJob, shape: ModelShape) -> dict[str, object]:
    """Return the arguments of `peft`."""
    fields: dict[str, object] = {
        "target_modules": _modules(tuning, shape),
        "dim": tuning.rank,
        "alpha": int(tuning.alpha),
        "dropout": tuning.dropout,
    }
    return fields | ({"share_expert_adapters": False} if EXPERTS in tuning.targets else {})


def _modules(tuning: TuningJob, shape: ModelShape) -> list[str]:
    """Return the names of the adapted layers; those of experts are named as those of MLPs."""
    parts = split_targets(tuning, shape)
    alone = {} if shape.gated else {"up": "linear_fc1"}
    names = [
        PART_NAMES[x] if x in parts else {**WHOLE_NAMES, **alone}[x]
        for x in tuning.targets
        if x != EXPERTS
    ]
    of_experts = ["linear_fc1", "linear_fc2"] if EXPERTS in tuning.targets else []
    return list(dict.fromkeys([*names, *of_experts]))


def _has_mlps(shape: ModelShape) -> bool:
    """Tell whether some layer has an MLP or shared experts."""
    return not shape.n_experts or shape.shared_ffn > 0 or shape.kind_counts[0] > 0


def adapter_refusals(tuning: TuningJob, shape: ModelShape) -> list[str]:
    """Return what of the adapters of a job no recipe says, a line each.

    Names of layers match routed experts, shared ones and MLPs alike.
    """
    parts = split_targets(tuning, shape)
    fused = [x for x in tuning.targets if x in FUSED or (x == "up" and not shape.gated)]
    of_mlps = [x for x in tuning.targets if x in ("gate", "up", "gate_up", "down")]
    has_experts = EXPERTS in tuning.targets
    whole_mlp = {"gate_up", "down"} if shape.gated else {"up", "down"}
    uneven = has_experts and _has_mlps(shape) and set(of_mlps) != whole_mlp
    faults = (
        (
            bool(parts and fused),
            f"targets {', '.join([*fused, *parts])}: one class has fused layers, one their parts",
            "qkv and gate_up, or q, k, v, gate and up",
        ),
        (
            bool(shape.n_experts and of_mlps) and not has_experts,
            f"targets {', '.join(of_mlps)}: their names are those of routed experts too",
            "targets of attention, or experts with them",
        ),
        (
            has_experts and bool(parts),
            f"targets {', '.join(parts)}: beside experts fused layers are adapted",
            "qkv and gate_up",
        ),
        (
            uneven,
            "targets experts: names of layers match shared experts and MLPs too",
            f"targets experts, {', '.join(sorted(whole_mlp))}",
        ),
        (
            not float(tuning.alpha).is_integer(),
            f"alpha {tuning.alpha:g}: Megatron-Bridge takes a whole number",
            f"{max(1, round(tuning.alpha))}",
        ),
    )
    return [f"{message}; closest: {fix}" for hit, message, fix in faults if hit]


def adapter_job(kind: str, fields: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the fields of `training:` that a section `peft` says; `SpecError` for odd values.

    `kind` is its class, `fields` its arguments by name.
    """
    if kind not in MODULES:
        message = f"peft = {kind or 'a value'}(...): adapters that are not read"
        raise SpecError(InputProblem(message, f"{WHOLE} or {PARTS}", source))
    values = {**DEFAULTS, **fields}
    for name in DEFAULTS:
        if isinstance(values[name], bool) or not isinstance(values[name], int | float):
            message = f"peft.{name}: expected a number, got {values[name]!r}"
            raise SpecError(InputProblem(message, "", source))
    for name in ("exclude_modules", "canonical_mapping"):
        if values.get(name):
            message = f"peft.{name} = {values[name]!r}: layers named so are not read"
            raise SpecError(InputProblem(message, "name them with target_modules", source))
    named = values.get("target_modules", DEFAULT_TARGETS[kind])
    is_named = isinstance(named, list | tuple) and all(isinstance(one, str) for one in named)
    if not is_named or not named:
        message = f"peft.target_modules: expected names of layers, got {named!r}"
        raise SpecError(InputProblem(message, f"such as {[*DEFAULT_TARGETS[kind]]}", source))
    ours = {name: target for target, name in (*WHOLE_NAMES.items(), *PART_NAMES.items())}
    lora = {"rank": values["dim"], "alpha": values["alpha"], "dropout": values["dropout"]}
    targets = [ours.get(name, name) for name in named]
    return {"task": "lora", "lora": {**lora, "targets": targets}}


def with_experts(job: Mapping[str, Any], model: ModelInput | None) -> dict[str, Any]:
    """Return the fields with routed experts among the targets, where names match theirs.

    Those of a model without other MLPs are left out of it.
    """
    lora = dict(job["lora"])
    shape = model.shape if model else None
    if shape is None or not shape.n_experts or "gate_up" not in lora["targets"]:
        return dict(job)
    others = [x for x in lora["targets"] if _has_mlps(shape) or x not in ("gate_up", "down")]
    return {**job, "lora": {**lora, "targets": [*others, EXPERTS]}}
