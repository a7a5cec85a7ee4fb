"""What Primus refuses: what its Megatron-LM refuses, what it checks itself, what is not written.

Rule PRMnnn is MLMnnn at the release of megatron-core that Primus runs, as far as it is one on
layouts. Those from 601 on are of Primus itself, over the keys of an experiment: they are read of
`primus/backends/megatron` (`patches/args/rocm_arg_validation.py` above all).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from costmodels.axes import AXES
from searches.frameworks.case import Bools, Case, NotStatedError
from searches.frameworks.megatron.layer_kinds import LAYER_KIND_RULES, MIXER_SYMBOLS, has_mixer
from searches.frameworks.megatron.layouts import LAYOUT_RULES, NO_FLAG
from searches.frameworks.megatron.modes import MODE_LAYOUT_RULES
from searches.frameworks.registry import BUILT_IN
from searches.frameworks.rule import Enforcement, FrameworkRule, applies, holding
from searches.frameworks.rule import conditions_rule as _conditions_rule
from searches.frameworks.rule import setting_rule as _setting_rule

BACKEND = "primus/backends/megatron"
VALIDATION = f"{BACKEND}/patches/args/rocm_arg_validation.py, validate_args_on_rocm"
TURBO = f"{BACKEND}/core/extensions/primus_turbo.py"
MEGA_MOE = f"{BACKEND}/core/extensions/mega_moe.py, _assert_supported_config"
HSDP = f"{BACKEND}/patches/args/hsdp_args_patches.py"
RECOMPUTE = f"{BACKEND}/patches/recompute_layer_patches.py, validate_specified_recompute_layers"

OTHER_MIXERS = tuple(x for x in (*MIXER_SYMBOLS, "sparse") if x not in ("attention", "window"))
"""What stands for attention in layers that Megatron-LM has and we do not write for Primus."""
RANKS_OF_SEVERAL_NODES = 16
"""Expert-parallel ranks from which Turbo's DeepEP is told so few compute units."""
MOST_UNITS = 32
FP8_OF_TURBO = ("tensorwise", "blockwise", "mxfp8")
"""Recipes that Turbo's products know."""
DEFAULTS: Mapping[str, object] = {
    "fp8_recipe": "delayed",
    "fp4_recipe": "nvfp4",
    "ckpt_format": "torch_dist",
    "tensor_model_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "turbo_deepep_num_cu": MOST_UNITS,
    "turbo_sync_free_moe_stage": 0,
    "data_parallel_replicate_degree": 1,
}
"""What its presets set of the keys that rules read, where that is neither off nor empty."""
_AT_PARSE = Enforcement("primus", VALIDATION)
_rule = partial(_setting_rule, enforced=_AT_PARSE)
_conditions = partial(_conditions_rule, enforced=_AT_PARSE)


def _key(c: Case, name: str) -> Any:
    return c.setting(name, DEFAULTS.get(name))


def _number(c: Case, name: str) -> int:
    value = _key(c, name)
    if value is None:
        raise NotStatedError
    return int(value)


def _turbo(c: Case, name: str) -> bool:
    """Tell whether an operator of Primus-Turbo is on: the main switch has to be, too."""
    return bool(_key(c, "enable_primus_turbo") and _key(c, name))


def _stage(c: Case) -> int:
    return _number(c, "turbo_sync_free_moe_stage")


def _sends_by_deepep(c: Case) -> bool:
    return _turbo(c, "use_turbo_deepep") or _stage(c) > 1


def _dispatcher(c: Case, name: str) -> Bools:
    return c.switch("dispatcher") == AXES["dispatcher"].choices.index(name)


def _mega_faults(c: Case) -> list[str]:
    """Return what excludes the fused layer of experts."""
    if not _key(c, "use_turbo_mega_moe"):
        return []
    balancing = _key(c, "moe_router_load_balancing_type")
    kinds = balancing if isinstance(balancing, list | tuple) else [balancing]
    return holding(
        {
            "use_turbo_mega_moe excludes tensor parallelism": _number(
                c, "tensor_model_parallel_size"
            )
            > 1,
            "use_turbo_mega_moe excludes a capacity of experts": _key(
                c, "moe_expert_capacity_factor"
            )
            is not None,
            "use_turbo_mega_moe excludes biases": bool(_key(c, "add_bias_linear")),
            "use_turbo_mega_moe excludes init_model_with_meta_device": bool(
                _key(c, "init_model_with_meta_device")
            ),
            "use_turbo_mega_moe excludes the sinkhorn balancing": "sinkhorn" in kinds,
        }
    )


def _layer_faults(c: Case) -> list[str]:
    """Return what is wrong with single layers that are recomputed."""
    ids = _key(c, "recompute_layer_ids")
    if ids is None:
        return []
    numbers = [int(x) for x in (ids.split(",") if isinstance(ids, str) else ids)]
    depth = int(_key(c, "num_layers") or 0) + int(_key(c, "mtp_num_layers") or 0)
    return holding(
        {
            "recompute_layer_ids without recompute_granularity full": _key(
                c, "recompute_granularity"
            )
            != "full",
            "recompute_layer_ids beside a recompute_method": _key(c, "recompute_method")
            is not None,
            "recompute_layer_ids is empty": not numbers,
            f"recompute_layer_ids from {depth} on: layers count from 0": bool(
                depth and numbers and max(numbers) >= depth
            ),
        }
    )


OWN_LAYOUT_RULES: tuple[FrameworkRule, ...] = (
    FrameworkRule(
        "PRM601",
        "primus",
        "tokens sent by HybridEP",
        "planner",
        f"{BACKEND}/patches/turbo/moe_dispatcher_patches.py",
        lambda c: _dispatcher(c, "hybridep"),
        "dispatcher hybridep: its DeepEP is Primus-Turbo's, HybridEP is written for NVLink",
        "dispatcher deepep or alltoall",
    ),
    FrameworkRule(
        "PRM602",
        "primus",
        "DeepEP with a capacity of experts",
        "start",
        f"{TURBO}, PrimusTurboDeepEPTokenDispatcher",
        lambda c: _dispatcher(c, "deepep") & (c.ep * c.etp > 1) & (c.model.capacity_factor > 0),
        lambda c: (
            f"dispatcher deepep with capacity_factor {c.model.capacity_factor:g}: it takes no"
            " experts that are padded to a capacity"
        ),
        "dispatcher alltoall, or no capacity_factor",
    ),
    FrameworkRule(
        "PRM603",
        "primus",
        "products in NVFP4",
        "planner",
        f"{TURBO}, PrimusTurboLowPrecisionGlobalStateManager",
        lambda c: bool(c.job.recipe.fp4_recipe),
        lambda c: f"precision {c.job.precision}: of fp4 it has MXFP4 alone, which has no price",
        "precision fp8-mxfp8",
        is_of_job=True,
    ),
    FrameworkRule(
        "PRM604",
        "primus",
        "layers that are neither attention nor MLP",
        "planner",
        f"{BACKEND}/core/models/hybrid",
        lambda c: any(has_mixer(c.model, x) for x in OTHER_MIXERS),
        "layers: its models of state-space and linear layers have layers of their own, which are"
        " read and not written",
        "framework megatron",
        is_of_job=True,
    ),
)
"""Rules over layouts that Megatron-LM has not."""
OWN_SETTING_RULES: tuple[FrameworkRule, ...] = (
    _rule(
        "PRM620",
        "a stage of the sync-free experts that there is none of",
        lambda c: not 0 <= _stage(c) <= 3,
        lambda c: f"turbo_sync_free_moe_stage {_stage(c)}: stages are 0 to 3",
        "turbo_sync_free_moe_stage 1",
    ),
    _rule(
        "PRM621",
        "sync-free experts without Primus-Turbo",
        lambda c: _stage(c) > 0 and not _key(c, "enable_primus_turbo"),
        lambda c: f"turbo_sync_free_moe_stage {_stage(c)} without enable_primus_turbo",
        "enable_primus_turbo true, or turbo_sync_free_moe_stage 0",
    ),
    _rule(
        "PRM622",
        "sync-free experts without Turbo's grouped products",
        lambda c: _stage(c) > 1 and not _key(c, "use_turbo_grouped_gemm"),
        lambda c: f"turbo_sync_free_moe_stage {_stage(c)} without use_turbo_grouped_gemm",
        "use_turbo_grouped_gemm true, or turbo_sync_free_moe_stage 1",
    ),
    _rule(
        "PRM623",
        "two kinds of grouped products",
        lambda c: bool(
            _key(c, "use_turbo_grouped_gemm") and _key(c, "moe_use_legacy_grouped_gemm")
        ),
        "use_turbo_grouped_gemm with moe_use_legacy_grouped_gemm: one or the other",
        "moe_use_legacy_grouped_gemm false",
    ),
    _rule(
        "PRM624",
        "DeepEP beside shared experts that overlap",
        lambda c: _sends_by_deepep(c) and bool(_key(c, "moe_shared_expert_overlap")),
        "use_turbo_deepep with moe_shared_expert_overlap",
        "moe_shared_expert_overlap false",
    ),
    _rule(
        "PRM625",
        "DeepEP with probabilities that are not fp32",
        lambda c: _sends_by_deepep(c) and _key(c, "moe_router_dtype") != "fp32",
        lambda c: (
            f"use_turbo_deepep with moe_router_dtype {_key(c, 'moe_router_dtype') or 'unset'}:"
            " it sends probabilities in fp32 alone"
        ),
        "moe_router_dtype fp32",
    ),
    _rule(
        "PRM626",
        "DeepEP between nodes on too many compute units",
        lambda c: (
            _sends_by_deepep(c)
            and _number(c, "expert_model_parallel_size") >= RANKS_OF_SEVERAL_NODES
            and _number(c, "turbo_deepep_num_cu") > MOST_UNITS
        ),
        lambda c: (
            f"turbo_deepep_num_cu {_number(c, 'turbo_deepep_num_cu')} with"
            f" expert_model_parallel_size {_number(c, 'expert_model_parallel_size')}: at most"
            f" {MOST_UNITS} from {RANKS_OF_SEVERAL_NODES} ranks on"
        ),
        f"turbo_deepep_num_cu {MOST_UNITS}",
    ),
    _rule(
        "PRM627",
        "a recipe of fp8 that Turbo's products do not have",
        lambda c: (
            bool(_key(c, "fp8") and _key(c, "use_turbo_gemm"))
            and _key(c, "fp8_recipe") not in FP8_OF_TURBO
        ),
        lambda c: f"use_turbo_gemm with fp8_recipe {_key(c, 'fp8_recipe')}",
        "fp8_recipe tensorwise, or use_turbo_gemm false",
    ),
    _rule(
        "PRM628",
        "a recipe of fp4 that Turbo's products do not have",
        lambda c: (
            bool(_key(c, "fp4") and _key(c, "use_turbo_gemm")) and _key(c, "fp4_recipe") != "mxfp4"
        ),
        lambda c: f"use_turbo_gemm with fp4_recipe {_key(c, 'fp4_recipe')}",
        "fp4_recipe mxfp4, or use_turbo_gemm false",
    ),
    _rule(
        "PRM629",
        "operators that were taken out",
        lambda c: bool(_key(c, "use_turbo_parallel_linear") or _key(c, "use_turbo_grouped_mlp")),
        "use_turbo_parallel_linear and use_turbo_grouped_mlp were taken out",
        "use_turbo_gemm, use_turbo_grouped_gemm",
    ),
    _rule(
        "PRM630",
        "grouped products without padding",
        lambda c: (
            bool(_key(c, "turbo_grouped_gemm_without_padding"))
            and (
                not _turbo(c, "use_turbo_grouped_gemm")
                or bool(_key(c, "moe_router_padding_for_quantization"))
            )
        ),
        "turbo_grouped_gemm_without_padding needs enable_primus_turbo, use_turbo_grouped_gemm"
        " and no moe_router_padding_for_quantization",
        "turbo_grouped_gemm_without_padding false",
    ),
    _setting_rule(
        "PRM631",
        "Turbo's products under tensor parallelism",
        lambda c: _turbo(c, "use_turbo_gemm") and _number(c, "tensor_model_parallel_size") > 1,
        lambda c: (
            "use_turbo_gemm with tensor_model_parallel_size"
            f" {_number(c, 'tensor_model_parallel_size')}: its linear layers are whole"
        ),
        "use_turbo_gemm false, or tensor_model_parallel_size 1",
        Enforcement("primus", f"{TURBO}, PrimusTurboLinear", "start"),
    ),
    _setting_rule(
        "PRM632",
        "Turbo's grouped products under tensor parallelism of experts",
        lambda c: (
            _turbo(c, "use_turbo_grouped_gemm")
            and bool(_key(c, "num_experts"))
            and bool(c.etp > 1)
        ),
        lambda c: f"use_turbo_grouped_gemm with experts cut {c.etp} ways: its experts are whole",
        "use_turbo_grouped_gemm false, or expert_tensor_parallel_size 1",
        Enforcement("primus", f"{TURBO}, PrimusTurboGroupedLinear", "start"),
    ),
    _setting_rule(
        "PRM633",
        "replicated shards without FSDP2",
        lambda c: (
            _number(c, "data_parallel_replicate_degree") > 1
            and (not _key(c, "use_torch_fsdp2") or _key(c, "ckpt_format") != "torch_dcp")
        ),
        lambda c: (
            f"data_parallel_replicate_degree {_number(c, 'data_parallel_replicate_degree')}"
            " needs use_torch_fsdp2 and ckpt_format torch_dcp"
        ),
        "use_torch_fsdp2 true with ckpt_format torch_dcp",
        Enforcement("primus", HSDP),
    ),
    _conditions_rule(
        "PRM634",
        "what the fused layer of experts excludes",
        _mega_faults,
        "use_turbo_mega_moe false",
        Enforcement("primus", MEGA_MOE, "start"),
    ),
    _conditions_rule(
        "PRM635",
        "single layers to recompute",
        _layer_faults,
        "recompute_granularity full, recompute_method null, ids of layers",
        Enforcement("primus", RECOMPUTE, "start"),
    ),
    _setting_rule(
        "PRM636",
        "Turbo's attention with a window",
        lambda c: _turbo(c, "use_turbo_attention") and _key(c, "window_size") is not None,
        "use_turbo_attention with window_size: it has no sliding windows of Megatron-LM",
        "use_turbo_attention false, or use_sink_attention with sink_sliding_window",
        Enforcement("primus", f"{TURBO}, PrimusTurboAttention", "start"),
    ),
    _setting_rule(
        "PRM650",
        "keys that nothing reads",
        lambda c: bool(c.unknown),
        lambda c: f"no code of Primus reads {', '.join(c.unknown)}",
        "take them out",
        Enforcement("primus", f"{BACKEND}/argument_builder.py, MegatronArgBuilder", "ignored"),
    ),
)
"""Rules over keys of an experiment."""
OF_LAYER_KINDS = ("MLM701", "MLM710", "MLM711", "MLM712")
"""Those of Megatron-LM's rules on kinds of layers that are not about its hybrid models: Primus has
models of its own in their place."""
OF_MEGATRON = tuple(
    replace(rule, code=rule.code.replace("MLM", "PRM"), framework="primus")
    for rule in (*LAYOUT_RULES, *MODE_LAYOUT_RULES, *LAYER_KIND_RULES)
    if rule.code != NO_FLAG
    and (rule not in LAYER_KIND_RULES or rule.code in OF_LAYER_KINDS)
    and any(applies(rule, one.rules_version) for one in BUILT_IN["primus"].releases)
)
"""Those of its Megatron-LM."""
RULES: tuple[FrameworkRule, ...] = (*OF_MEGATRON, *OWN_LAYOUT_RULES, *OWN_SETTING_RULES)
"""All rules of Primus."""
