"""Keys of recipes that NeMo AutoModel refuses or passes over.

Settings are keys with dots between the levels (`distributed.tp_size`), the words none, true and
false of any key as what they stand for. Sources are files of the package `nemo_automodel` 0.7.0.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from searches.frameworks.automodel.layouts import MESH, MOE_PLANS, PIPELINE, SCHEDULER
from searches.frameworks.case import Case, NotStatedError
from searches.frameworks.rule import (
    Enforcement,
    FrameworkRule,
    conditions_rule,
    holding,
    setting_rule,
)

SECTION = "recipes/_dist_utils.py, parse_distributed_section"
STRATEGY = "components/distributed/config.py, _resolve_strategy_config"
DEVICES = "components/distributed/mesh_utils.py, _create_device_meshes"
LOADER = "components/config/loader.py, ConfigNode.instantiate"
STRATEGIES: Mapping[str, str] = {
    "fsdp2": "fsdp2",
    "megatron_fsdp": "megatron_fsdp",
    "megatron-fsdp": "megatron_fsdp",
    "mfsdp": "megatron_fsdp",
    "ddp": "ddp",
}
"""Strategies by the words that name them."""
RECOMPUTE: Mapping[str, str] = {
    **dict.fromkeys(("false", "off", "none", "disabled", "no"), "none"),
    **dict.fromkeys(("true", "on", "full", "enabled", "yes"), "full"),
    "selective": "selective",
}
"""What the words of `distributed.activation_checkpointing` say."""
SCHEDULE_WORDS: Mapping[str, str] = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "loopedbfs": "interleaved",
    "interleavedzerobubble": "interleaved",
    "zbvzerobubble": "zb-v",
    "dualpipev": "dualpipe-v",
    "pipelineschedulesingle": "1f1b",
    "pipelineschedulemulti": "interleaved",
}
"""Schedules of plans by `pp_schedule`, which torch reads without its case."""
SINGLE = ("1f1b", "gpipe", "pipelineschedulesingle")
"""Schedules of one stage a rank."""

_enforced = partial(Enforcement, "automodel")


def degree(c: Case, name: str) -> int:
    """Return a degree; whatever is no number above 0 counts as 1, as there."""
    value = c.setting(f"distributed.{name}_size")
    return value if isinstance(value, int) and value > 0 else 1


def strategy_of(settings: Mapping[str, Any]) -> str:
    """Return the strategy that a recipe names; empty for a word that is none."""
    return STRATEGIES.get(str(settings.get("distributed.strategy", "fsdp2")).lower(), "")


def schedule_word(settings: Mapping[str, Any]) -> str:
    """Return the name of the pipeline's schedule in small letters."""
    return str(settings.get("distributed.pipeline.pp_schedule", "1f1b")).lower()


def _strategy(c: Case) -> str:
    return strategy_of(c.settings)


def _has_pipeline(c: Case) -> bool:
    return any(
        name == "distributed.pipeline" or name.startswith("distributed.pipeline.")
        for name in c.settings
    )


def _pp(c: Case) -> int:
    return degree(c, "pp")


def _words(c: Case) -> list[str]:
    again = str(c.setting("distributed.activation_checkpointing", False)).lower().replace("-", "_")
    strategy = c.setting("distributed.strategy", "fsdp2")
    schedule = schedule_word(c.settings)
    rounding = c.setting("distributed.pipeline.round_virtual_stages_to_pp_multiple")
    return holding(
        {
            f"distributed.strategy {strategy}": not _strategy(c),
            f"distributed.activation_checkpointing {again}": again not in RECOMPUTE,
            f"distributed.pipeline.pp_schedule {schedule}": _pp(c) > 1
            and schedule not in SCHEDULE_WORDS
            and not c.setting("distributed.pipeline.pp_schedule_csv"),
            f"round_virtual_stages_to_pp_multiple {rounding}": _pp(c) > 1
            and rounding not in (None, "up", "down"),
        }
    )


def _mesh(c: Case) -> list[str]:
    if _strategy(c) != "fsdp2" or c.setting("distributed.dp_size") is None:
        return []
    dp, others = degree(c, "dp"), degree(c, "tp") * degree(c, "cp") * degree(c, "pp")
    replicate = degree(c, "dp_replicate")
    try:
        too_many = bool(dp * others > c.n_devices)
    except NotStatedError:
        too_many = False
    return holding(
        {
            f"dp_size {dp} x tp, cp and pp of {others} are more than the devices": too_many,
            f"dp_size {dp} is no multiple of dp_replicate_size {replicate}": dp % replicate > 0,
            f"dp_replicate_size {replicate} is not below dp_size {dp}": replicate > 1
            and replicate >= dp,
        }
    )


def _lacking(c: Case) -> list[str]:
    """Return what a strategy other than fsdp2 has not."""
    strategy = _strategy(c)
    if strategy in ("fsdp2", ""):
        return []
    names = ("dp_replicate", "pp", "ep") + (("tp", "cp") if strategy == "ddp" else ())
    odd = {f"{strategy} has no {name}_size": degree(c, name) > 1 for name in names}
    again = str(c.setting("distributed.activation_checkpointing", False)).lower()
    odd[f"{strategy} has no selective activation checkpointing"] = (
        strategy == "megatron_fsdp" and again == "selective"
    )
    return holding(odd)


def _moe_tensor(c: Case) -> list[str]:
    if _strategy(c) != "fsdp2" or degree(c, "tp") < 2:
        return []
    on_tokens = bool(c.setting("distributed.sequence_parallel", False))
    is_async = bool(c.setting("distributed.enable_async_tensor_parallel", False))
    with_ep = degree(c, "ep") > 1
    return holding(
        {
            "sequence_parallel with ep_size and tp_size above 1": on_tokens and with_ep,
            "enable_async_tensor_parallel with ep_size above 1": is_async and with_ep,
            "enable_async_tensor_parallel without sequence_parallel": is_async and not on_tokens,
        }
    )


def _stages(c: Case) -> list[str]:
    """Return what is wrong with the virtual stages of `layers_per_stage`."""
    per_stage = c.setting("distributed.pipeline.layers_per_stage")
    pp, rounding = _pp(c), c.setting("distributed.pipeline.round_virtual_stages_to_pp_multiple")
    parts = c.setting("distributed.pipeline.module_fqns_per_model_part")
    if pp < 2 or not isinstance(per_stage, int) or per_stage < 1 or parts:
        return []
    stages = -(-c.model.layers // per_stage)
    rest = stages % pp
    if rest and rounding is None:
        return [f"layers_per_stage {per_stage} makes {stages} stages, no multiple of pp_size {pp}"]
    stages += (pp - rest if rounding == "up" else -rest) if rest else 0
    is_single = schedule_word(c.settings) in SINGLE
    return holding(
        {
            f"{stages} stages on {pp} ranks: {schedule_word(c.settings)} has one a rank": is_single
            and stages != pp,
            f"{stages} stages on {pp} ranks: {schedule_word(c.settings)} has two a rank or more": (
                not is_single and stages < 2 * pp
            ),
        }
    )


def _batches(c: Case) -> list[str]:
    local = c.setting("step_scheduler.local_batch_size", 1)
    micro = c.setting("distributed.pipeline.pp_microbatch_size", 1)
    total = c.setting("step_scheduler.global_batch_size", 32)
    if not all(isinstance(x, int) and x > 0 for x in (local, micro, total)):
        return [f"batch sizes {total}, {local} and {micro}: whole numbers above 0"]
    return holding(
        {
            f"local_batch_size {local} is no multiple of pp_microbatch_size {micro}": _pp(c) > 1
            and local % micro > 0
        }
    )


RULES: tuple[FrameworkRule, ...] = (
    setting_rule(
        "NAM120",
        "key that a section does not take",
        lambda c: bool(c.unknown),
        lambda c: f"unknown: {', '.join(c.unknown)}",
        "another spelling",
        _enforced(f"{STRATEGY}; {LOADER}"),
    ),
    setting_rule(
        "NAM121",
        "value of another kind than its key takes",
        lambda c: bool(c.refused),
        lambda c: "; ".join(c.refused),
        "a value of its kind",
        _enforced(LOADER, "start"),
    ),
    conditions_rule(
        "NAM122",
        "word that a key does not take",
        _words,
        f"strategy {'|'.join(STRATEGIES)}; activation_checkpointing true, false or selective;"
        " pp_schedule 1f1b, interleaved1f1b, gpipe or zbvzerobubble",
        _enforced(SECTION),
    ),
    conditions_rule(
        "NAM123",
        "sizes of the mesh that do not go together",
        _mesh,
        "dp_size null, which takes what is left; dp_replicate_size that divides it",
        _enforced(MESH, covers=("NAM101", "NAM405")),
    ),
    conditions_rule(
        "NAM124",
        "what a strategy has not",
        _lacking,
        "strategy fsdp2",
        _enforced(f"{DEVICES}; {SECTION}"),
    ),
    setting_rule(
        "NAM125",
        "batch sizes that do not divide",
        lambda c: (
            c.setting("step_scheduler.global_batch_size", 32)
            % (c.setting("step_scheduler.local_batch_size", 1) * c.dp)
            > 0
        ),
        lambda c: (
            f"global_batch_size {c.setting('step_scheduler.global_batch_size', 32)} is no multiple"
            f" of local_batch_size {c.setting('step_scheduler.local_batch_size', 1)} x {c.dp}"
        ),
        "a global_batch_size that is",
        _enforced(SCHEDULER, "start", covers=("NAM111",)),
    ),
    conditions_rule(
        "NAM126",
        "batch sizes of a rank",
        _batches,
        "a local_batch_size of whole micro-batches",
        _enforced(f"{SCHEDULER}; components/distributed/pipelining/autopipeline.py", "start"),
    ),
    setting_rule(
        "NAM220",
        "pipeline without its section",
        lambda c: _pp(c) > 1 and not _has_pipeline(c),
        lambda c: f"pp_size {_pp(c)} without distributed.pipeline",
        "distributed.pipeline with pp_schedule and pp_microbatch_size",
        _enforced(SECTION),
    ),
    conditions_rule(
        "NAM221",
        "layers that make no whole stages",
        _stages,
        "layers_per_stage null, or round_virtual_stages_to_pp_multiple",
        _enforced(f"{PIPELINE}, calculate_virtual_stages", "start"),
    ),
    setting_rule(
        "NAM222",
        "pipeline that is switched off",
        lambda c: _pp(c) < 2 and _has_pipeline(c),
        "distributed.pipeline without pp_size above 1",
        "pp_size above 1",
        _enforced(SECTION, "ignored"),
    ),
    conditions_rule(
        "NAM320",
        "tensor parallelism of its classes with experts",
        _moe_tensor,
        "sequence_parallel false, enable_async_tensor_parallel false",
        _enforced(MOE_PLANS, "start"),
    ),
    setting_rule(
        "NAM520",
        "fake quantisation with adapters",
        lambda c: (
            bool(c.setting("qat.enabled", False))
            and any(name.startswith("peft.") for name in c.settings)
        ),
        "qat.enabled with peft: not supported",
        "one of the two",
        _enforced("recipes/llm/train_ft.py, build_model", "start"),
    ),
)
"""Rules over the keys of a recipe."""
