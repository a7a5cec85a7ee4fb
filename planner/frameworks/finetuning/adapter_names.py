"""Linear layers with adapters, by the names of transformers' classes: written, and read back."""

from collections.abc import Iterable, Mapping

from costmodels.tuning.records import TuningJob
from costmodels.tuning.targets import EXPERTS

NAMES: Mapping[str, str] = {
    **{name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")},
    "q_down": "q_a_proj",
    "q_up": "q_b_proj",
    "kv_down": "kv_a_proj_with_mqa",
    "kv_up": "kv_b_proj",
}
"""What most classes call the targets of `costmodels.tuning.targets`."""
NAMES_OF_TYPE: Mapping[str, Mapping[str, str]] = {"starcoder2": {"up": "c_fc", "down": "c_proj"}}
"""What classes of some `model_type` call otherwise."""
MOVED_TO_EXPERTS = frozenset(
    (
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe"),
        *("glm4_moe", "glm4_moe_lite", "hunyuan_v1_moe", "longcat_flash", "olmoe", "qwen3_moe"),
        *("qwen3_next", "qwen3_omni_moe"),
    )
)
"""Types whose `gate_proj`, `up_proj` and `down_proj` peft takes for the tensors of routed experts,
also those of dense layers and shared experts. Source: peft 0.21.2,
utils/transformers_weight_conversion.py."""
MOVED = ("gate", "up", "down")
"""The targets that these names stand for."""
EXPERT_TENSORS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
"""The tensors of all routed experts of a layer, which are no linear layers, in transformers 5."""


def module_names(tuning: TuningJob, model_type: str) -> list[str]:
    """Return the adapted linear layers as a class of transformers calls them."""
    names = {**NAMES, **NAMES_OF_TYPE.get(model_type, {})}
    return [names[target] for target in tuning.targets if target != EXPERTS]


def tensor_names(tuning: TuningJob) -> list[str]:
    """Return the adapted tensors of experts; empty where experts have no adapters."""
    return list(EXPERT_TENSORS) if EXPERTS in tuning.targets else []


def targets_of(names: Iterable[str], has_experts: bool = False) -> list[str]:
    """Return `training.lora.targets` for names in a file; unknown ones stay."""
    known = {name: ours for names in NAMES_OF_TYPE.values() for ours, name in names.items()}
    known |= {name: ours for ours, name in NAMES.items()}
    plain = [known.get(name.rsplit(".", 1)[-1], name) for name in names]
    return list(dict.fromkeys([*plain, *([EXPERTS] if has_experts else [])]))
