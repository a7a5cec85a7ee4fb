"""A plan as keys of an experiment of Primus, and which keys come to another plan.

Keys are the names by which Megatron-LM's parser stores its options; Primus adds its own. Its
presets set many of them otherwise than the parser, so that a plan has to say those too.
"""

from collections.abc import Mapping
from typing import Any

from costmodels.layers.kinds import added_kinds
from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.megatron.arguments import LAYOUT_DESTS
from planner.frameworks.megatron.emitter import flag_groups
from planner.frameworks.megatron.flags import flag_table, parse_flags
from planner.frameworks.megatron.model import MODEL_DESTS
from planner.frameworks.megatron.settings import PARTS, changed_flags
from planner.frameworks.primus.options import default_value, option_table, presets
from planner.frameworks.runs.existing_run import ExistingRun
from planner.specs.schema import NO_DETAILS, DetailsSpec
from searches.frameworks.primus import MOST_UNITS
from searches.frameworks.registry import framework_rules

PLAN_KEYS = (LAYOUT_DESTS | MODEL_DESTS | {dest for _, dests in PARTS for dest in dests}) - {
    "cuda_graph_scope",
    "enable_cuda_graph",
    "external_cuda_graph",
}
"""Keys that say a plan or its model; one that the presets set otherwise than meant is written."""
ALSO_TOLD = (
    "add_position_embedding",
    "bf16",
    "fp16",
    "add_bias_linear",
    "swiglu",
    "untie_embeddings_and_output_weights",
    "gradient_accumulation_fusion",
    "cross_entropy_loss_fusion",
    "masked_softmax_fusion",
    "moe_shared_expert_overlap",
    "moe_permute_fusion",
)
"""Further keys of which the presets' value may not be the plan's."""
DEEPEP_KEYS = ("moe_flex_dispatcher_backend", "moe_token_dispatcher_type")
"""What Megatron-LM says where Primus has `use_turbo_deepep`."""
TRIAL: Mapping[str, object] = {
    "min_lr": 0.0,
    "lr_warmup_iters": 0,
    "lr_decay_iters": None,
    "finetune": False,
    "load": None,
    "save": None,
    "disable_last_saving": True,
    "train_data_path": None,
    "valid_data_path": None,
    "test_data_path": None,
}
"""A run without checkpoints: the presets warm up over more steps than a timing trial has."""
_GROUPS = {"data": "data and checkpoints", "evaluation": "data and checkpoints"}


def plan_settings(
    layout: Layout, shape: ModelShape, job: TrainingJob, details: DetailsSpec = NO_DETAILS
) -> dict[str, dict[str, Any]]:
    """Return the keys of a plan with their values, in named groups.

    What Megatron-LM's flags say, under its own names; what the presets would set otherwise; what
    Primus has in place of, or beside, Megatron-LM's.
    """
    core = framework_rules("primus").rules_version()
    groups: dict[str, dict[str, Any]] = {}
    for name, words in flag_groups(layout, shape, job, details, core):
        section = groups.setdefault(_GROUPS.get(name, name), {})
        section |= parse_flags([word.strip("'") for word in words]).settings
    groups["data and checkpoints"] |= TRIAL
    said = {key: value for section in groups.values() for key, value in section.items()}
    turbo = turbo_settings(layout, shape, said)
    if turbo.get("use_turbo_deepep"):
        groups["experts"] = {k: v for k, v in groups["experts"].items() if k not in DEEPEP_KEYS}
    if said.get("attention_backend") == "flash":
        # Primus picks among the kernels of ROCm; Transformer Engine has no other flash there.
        groups["model"]["attention_backend"] = "auto"
    said |= turbo
    groups["otherwise than the presets"] = _unlike_presets(said)
    groups["Primus-Turbo"] = turbo
    return {
        name: {key: _plain(key, value) for key, value in section.items()}
        for name, section in groups.items()
        if section
    }


def turbo_settings(layout: Layout, shape: ModelShape, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the switches of Primus-Turbo: attention, grouped products, DeepEP, sync-free experts.

    Its attention splits heads alone over context-parallel ranks and has no windows; its grouped
    products have whole experts. The stage of sync-free experts is 0: the plan prices a device
    that waits to learn how many tokens every expert gets.
    """
    windows = any(kind.mixer == "window" for kind in added_kinds(shape))
    attention = (
        shape.flash_attention
        and not windows
        and "softmax_type" not in said
        and (layout.cp == 1 or layout.cp_comm == "a2a")
    )
    experts = shape.n_experts > 0
    settings: dict[str, Any] = {
        "enable_primus_turbo": True,
        "use_turbo_attention": attention,
        "use_turbo_grouped_gemm": experts and layout.etp == 1,
        "use_turbo_deepep": False,
        "turbo_sync_free_moe_stage": 0,
    }
    sent = layout.ep * layout.etp > 1 and layout.value("dispatcher") == "deepep"
    if experts and sent:
        settings |= {
            "use_turbo_deepep": True,
            "turbo_deepep_num_cu": MOST_UNITS,
            "turbo_deepep_use_comm_stream": False,
        }
    return settings


def _unlike_presets(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that the plan leaves at the parser's default and the presets do not."""
    theirs = presets()
    found = {}
    for key in sorted((PLAN_KEYS | set(ALSO_TOLD)) & theirs.keys() - said.keys()):
        meant = default_value(key)
        if _comparable(key, meant) != _comparable(key, theirs[key]) and (meant or theirs[key]):
            found[key] = meant
    return found


def _comparable(key: str, value: Any) -> Any:
    value = _plain(key, value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _plain(key: str, value: Any) -> Any:
    """Return a value as the presets write it: one alone of a list without the list."""
    one = option_table()[1].get(key)
    is_scalar = one is not None and one.has_preset and not isinstance(one.preset, list)
    if isinstance(value, list) and len(value) == 1 and is_scalar:
        return value[0]
    return value


def changed_keys(
    run: ExistingRun, old: Layout, new: Layout, after: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the keys of what an experiment says otherwise than `new`; None takes one out.

    A key that the presets set is not taken out but set to what it means to be without it.
    """
    by_name = flag_table()[1]
    theirs, entries = presets(), {}
    for name, value in changed_flags(run, old, new, after).items():
        flag = by_name[name]
        if value is None:
            default = default_value(flag.dest)
            keeps = theirs.get(flag.dest) in (None, False, default)
            entries[flag.dest] = None if keeps else _text(default)
        elif flag.is_switch:
            entries[flag.dest] = "false" if name.startswith("--no-") else "true"
        else:
            entries[flag.dest] = value
    return _in_own_words(run, entries)


def _in_own_words(run: ExistingRun, entries: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return changes of the dispatcher under the keys of Primus."""
    result = {key: value for key, value in entries.items() if key not in DISPATCH_KEYS}
    if result.keys() == entries.keys():
        return result
    if entries.get("moe_flex_dispatcher_backend") == "hybridep":
        return {}
    if entries.get("moe_token_dispatcher_type") == "flex":
        return result | {"enable_primus_turbo": "true", "use_turbo_deepep": "true"}
    kind = entries.get("moe_token_dispatcher_type")
    result |= {"moe_token_dispatcher_type": kind} if kind else {}
    if run.settings.get("use_turbo_deepep"):
        result["use_turbo_deepep"] = "false"
    return result


DISPATCH_KEYS = (*DEEPEP_KEYS, "moe_enable_deepep")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
