"""Options of MindSpeed-LLM that it refuses together, as its features check them (release 26.1.0).

Rules are over the names by which the parser stores options; degrees that the rules of `layouts`
look at are not looked at again.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from searches.frameworks.case import UNKNOWN, Case, NotStatedError
from searches.frameworks.mindspeed.layouts import (
    BLOCK,
    CONTEXT,
    CORE,
    CORE_FEATURES,
    FEATURES,
    LAYER_LIST,
    ROUTER,
)
from searches.frameworks.rule import Enforcement, FrameworkRule, holding
from searches.frameworks.rule import conditions_rule as _conditions_rule
from searches.frameworks.rule import setting_rule as _setting_rule

DEFAULTS: Mapping[str, object] = {
    "context_parallel_algo": "megatron_cp_algo",
    "cp_window_size": 1,
    "attention_mask_type": "causal",
    "context_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "tensor_model_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "moe_token_dispatcher_type": "allgather",
    "moe_router_load_balancing_type": "aux_loss",
    "position_embedding_type": "learned_absolute",
}
"""Defaults of the options that rules read, where they are neither off nor empty."""
_AT_PARSE = partial(Enforcement, "mindspeed")


def _option(c: Case, name: str) -> Any:
    return c.setting(name, DEFAULTS.get(name))


def _number(c: Case, name: str) -> int:
    value = _option(c, name)
    if value is None:
        raise NotStatedError
    return int(value)


def _rule(
    code: str, title: str, broken: Any, reason: Any, closest: Any, source: str
) -> FrameworkRule:
    return _setting_rule(code, title, broken, reason, closest, _AT_PARSE(source))


def _conditions(code: str, title: str, broken: Any, closest: str, source: str) -> FrameworkRule:
    return _conditions_rule(code, title, broken, closest, _AT_PARSE(source))


def _layer_list(c: Case) -> list[int]:
    text = _option(c, "num_layer_list")
    return [int(x) for x in str(text).split(",")] if text else []


def _layer_list_faults(c: Case) -> list[str]:
    """Return what is wrong with layers by stage."""
    counts, pp = _layer_list(c), _number(c, "pipeline_model_parallel_size")
    layers = int(_option(c, "num_layers") or 0)
    if not counts or _option(c, "noop_layers"):  # these switch it off
        return []
    return holding(
        {
            f"--num-layer-list of {len(counts)} stages with pp {pp}": len(counts) != pp,
            "--num-layer-list without a pipeline": pp == 1,
            f"--num-layer-list of {sum(counts)} layers, the model has {layers}": bool(
                layers and sum(counts) != layers
            ),
            "--num-layer-list with --num-layers-per-virtual-pipeline-stage": bool(
                _option(c, "num_layers_per_virtual_pipeline_stage")
            ),
            "--num-layer-list with --schedules-method dualpipev": (
                _option(c, "schedules_method") == "dualpipev"
            ),
        }
    )


def _hybrid_faults(c: Case) -> list[str]:
    """Return what is wrong with a ring of all-to-all groups."""
    cp = _number(c, "context_parallel_size")
    if cp == 1 or _option(c, "context_parallel_algo") != "hybrid_cp_algo":
        return []
    inner = _option(c, "ulysses_degree_in_cp")
    if inner is None:
        return ["hybrid_cp_algo without --ulysses-degree-in-cp"]
    heads, tp = _option(c, "num_attention_heads"), _number(c, "tensor_model_parallel_size")
    return holding(
        {
            f"--ulysses-degree-in-cp {inner} with cp {cp}: the ring has to have two ranks": bool(
                cp % inner or cp // inner < 2
            ),
            f"{heads} heads do not divide by --ulysses-degree-in-cp {inner} x tp {tp}": bool(
                heads and heads % (inner * tp)
            ),
        }
    )


def _context_faults(c: Case) -> list[str]:
    """Return what excludes context parallelism."""
    if _number(c, "context_parallel_size") == 1:
        return []
    window, seq_len = _option(c, "sliding_window"), _option(c, "seq_length")
    gathers = _option(c, "context_parallel_algo") == "kvallgather_cp_algo"
    return holding(
        {
            "context parallelism with alibi positions": (
                _option(c, "position_embedding_type") == "alibi"
            ),
            "context parallelism with --use-kv-cache": bool(_option(c, "use_kv_cache")),
            f"context parallelism with --sliding-window {window}": bool(
                window and seq_len and seq_len > window
            ),
            "kvallgather_cp_algo with --attention-mask-type general": (
                gathers and _option(c, "attention_mask_type") != "causal"
            ),
        }
    )


def _dualpipe_faults(c: Case) -> list[str]:
    """Return what DualPipeV excludes."""
    if _option(c, "schedules_method") != "dualpipev":
        return []
    pp, layers = _number(c, "pipeline_model_parallel_size"), _number(c, "num_layers")
    return holding(
        {
            "dualpipev with --overlap-grad-reduce": bool(_option(c, "overlap_grad_reduce")),
            "dualpipev with tied embeddings": not _option(
                c, "untie_embeddings_and_output_weights"
            ),
            "dualpipev with --swap-attention": bool(_option(c, "swap_attention")),
            "dualpipev with context parallelism": _number(c, "context_parallel_size") > 1,
            "dualpipev with virtual stages": bool(
                _option(c, "num_layers_per_virtual_pipeline_stage")
            ),
            "dualpipev with pp 1": pp == 1,
            f"dualpipev with {layers} layers on pp {pp}: two a rank at least": layers < 2 * pp,
            "dualpipev with --tp-2d": bool(_option(c, "tp_2d")),
        }
    )


def _overlap_faults(c: Case) -> list[str]:
    """Return what excludes forward beside backward of experts."""
    if not _option(c, "moe_fb_overlap"):
        return []
    names = (
        *("moe_alltoall_overlap_comm", "overlap_grad_reduce", "moe_zero_memory_num_layers"),
        *("recompute_in_bubble", "recompute_in_advance", "moe_tp_extend_ep", "swap_attention"),
    )
    flags = {f"--moe-fb-overlap with {_flag(x)}": bool(_option(c, x)) for x in names}
    dispatcher = _option(c, "moe_token_dispatcher_type")
    is_staged = bool(_option(c, "num_layers_per_virtual_pipeline_stage"))
    return holding(
        {
            **flags,
            "--moe-fb-overlap without --moe-grouped-gemm": not _option(c, "moe_grouped_gemm"),
            f"--moe-fb-overlap with dispatcher {dispatcher}": dispatcher != "alltoall",
            "--moe-fb-overlap without expert parallelism": (
                _number(c, "expert_model_parallel_size") == 1
            ),
            "--moe-fb-overlap on a pipeline without virtual stages or dualpipev": (
                _number(c, "pipeline_model_parallel_size") > 1
                and not is_staged
                and _option(c, "schedules_method") != "dualpipev"
                and _option(c, "pipeline_model_parallel_layout") is None
            ),
        }
    )


def _exchange_faults(c: Case) -> list[str]:
    """Return what excludes the exchange of tokens beside compute."""
    if not _option(c, "moe_alltoall_overlap_comm"):
        return []
    dispatcher = _option(c, "moe_token_dispatcher_type")
    is_old = dispatcher == "alltoall_seq"
    tp = _number(c, "tensor_model_parallel_size")
    name = "--moe-alltoall-overlap-comm"
    return holding(
        {
            f"{name} with --use-ascend-mc2": bool(_option(c, "use_ascend_mc2")),
            f"{name} with dispatcher {dispatcher}": dispatcher not in ("alltoall", "alltoall_seq"),
            f"{name} with ep 1": _number(c, "expert_model_parallel_size") == 1,
            f"{name} without --moe-grouped-gemm": not _option(c, "moe_grouped_gemm"),
            f"{name} without --moe-permutation-async-comm": (
                is_old and not _option(c, "moe_permutation_async_comm")
            ),
            f"{name} with tp {tp} without --moe-tp-extend-ep": (
                is_old and tp > 1 and not _option(c, "moe_tp_extend_ep")
            ),
        }
    )


def _bubble_faults(c: Case) -> list[str]:
    """Return what excludes recompute in the bubbles of a pipeline, or ahead of time."""
    names = [x for x in ("recompute_in_bubble", "recompute_in_advance") if _option(c, x)]
    has_stages = _number(c, "pipeline_model_parallel_size") > 1 and bool(
        _option(c, "num_layers_per_virtual_pipeline_stage")
    )
    conditions = {f"{_flag(x)} without virtual stages": not has_stages for x in names}
    conditions["--recompute-in-bubble with --swap-attention"] = (
        "recompute_in_bubble" in names and bool(_option(c, "swap_attention"))
    )
    return holding(conditions)


def _capacity_faults(c: Case) -> list[str]:
    """Return what excludes a capacity of experts."""
    if _option(c, "moe_expert_capacity_factor") is None:
        return []
    kind = _option(c, "moe_router_load_balancing_type")
    return holding(
        {
            "--moe-expert-capacity-factor with dispatcher allgather": (
                _option(c, "moe_token_dispatcher_type") == "allgather"
            ),
            f"--moe-expert-capacity-factor with balancing {kind}": kind
            not in ("aux_loss", "none"),
        }
    )


def _group_faults(c: Case) -> list[str]:
    """Return what is wrong with a choice of experts limited to groups of ranks."""
    if _option(c, "moe_router_load_balancing_type") != "group_limited_greedy":
        return []
    top, ep = _option(c, "moe_router_group_topk"), _number(c, "expert_model_parallel_size")
    return holding(
        {
            "group_limited_greedy without --moe-router-group-topk": top is None,
            f"group_limited_greedy: {top} groups of ep {ep}": top is not None and top >= ep,
            "group_limited_greedy without --moe-router-topk-scaling-factor": (
                _option(c, "moe_router_topk_scaling_factor") is None
            ),
        }
    )


def _fused_faults(c: Case) -> list[str]:
    """Return which fused products exclude each other."""
    return holding(
        {
            "--use-ascend-mc2 with --use-ascend-coc": bool(
                _option(c, "use_ascend_mc2") and _option(c, "use_ascend_coc")
            ),
            "--use-ascend-mc2 with experts in --moe-grouped-gemm": bool(
                _option(c, "use_ascend_mc2")
                and _option(c, "num_experts")
                and _option(c, "moe_grouped_gemm")
            ),
            "--use-fused-rotary-pos-emb without --position-embedding-type rope": bool(
                _option(c, "use_fused_rotary_pos_emb")
                and _option(c, "position_embedding_type") != "rope"
            ),
            "--gemm-gradient-accumulation-fusion without --moe-grouped-gemm": bool(
                _option(c, "gemm_gradient_accumulation_fusion")
                and not _option(c, "moe_grouped_gemm")
            ),
            "--reuse-fp32-param without --bf16": bool(
                _option(c, "reuse_fp32_param") and not _option(c, "bf16")
            ),
        }
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


QUEUE = "CUDA_DEVICE_MAX_CONNECTIONS"


def _queue_fault(c: Case) -> bool:
    if not c.env or c.env is UNKNOWN:
        return False  # the script may be started with it
    parallel = (
        _number(c, "tensor_model_parallel_size") > 1 or _number(c, "context_parallel_size") > 1
    )
    return parallel and c.env.get(QUEUE, "1") != "1"


RULES: tuple[FrameworkRule, ...] = (
    _rule(
        "MSL620",
        "options that nothing has",
        lambda c: bool(c.unknown),
        lambda c: f"no option of Megatron-LM {CORE} or MindSpeed-LLM: {', '.join(c.unknown)}",
        "take them out",
        "megatron/training/arguments.py, parse_args",
    ),
    _rule(
        "MSL621",
        "values that the parser refuses",
        lambda c: bool(c.refused),
        lambda c: "; ".join(c.refused),
        "values that it takes",
        "megatron/training/arguments.py, parse_args",
    ),
    _rule(
        "MSL622",
        "more than one queue of work",
        _queue_fault,
        lambda c: f"{QUEUE} {c.env[QUEUE]} with tensor or context parallelism",
        f"{QUEUE} 1",
        "megatron/training/arguments.py, validate_args",
    ),
    _conditions("MSL623", "layers by stage", _layer_list_faults, "a layer list", LAYER_LIST),
    _conditions(
        "MSL624",
        "a ring of groups",
        _hybrid_faults,
        "--ulysses-degree-in-cp that leaves a ring",
        CONTEXT,
    ),
    _conditions(
        "MSL625",
        "what excludes context parallelism",
        _context_faults,
        "context_parallel_size 1",
        f"{FEATURES}/context_parallel/context_parallel_feature.py, validate_args",
    ),
    _conditions(
        "MSL626",
        "what DualPipeV excludes",
        _dualpipe_faults,
        "no --schedules-method",
        f"{CORE_FEATURES}/pipeline_parallel/dualpipev_feature.py, validate_args",
    ),
    _conditions(
        "MSL627",
        "what excludes forward beside backward of experts",
        _overlap_faults,
        "no --moe-fb-overlap",
        f"{CORE_FEATURES}/moe/fb_overlap.py, validate_args",
    ),
    _conditions(
        "MSL628",
        "what excludes an exchange beside compute",
        _exchange_faults,
        "no --moe-alltoall-overlap-comm",
        f"{CORE_FEATURES}/moe/moe_alltoall_overlap.py, validate_args",
    ),
    _conditions(
        "MSL629",
        "what excludes recompute in bubbles",
        _bubble_faults,
        "virtual stages, without --swap-attention",
        f"{CORE_FEATURES}/pipeline_parallel/ripipe_schedules_feature.py, validate_args",
    ),
    _conditions(
        "MSL630",
        "what excludes a capacity of experts",
        _capacity_faults,
        "dispatcher alltoall, balancing aux_loss",
        ROUTER,
    ),
    _conditions(
        "MSL631",
        "experts of groups of ranks",
        _group_faults,
        "--moe-router-group-topk below ep",
        f"{FEATURES}/moe/moe_router.py, _validate_group_limited_greedy",
    ),
    _conditions(
        "MSL632",
        "fused products that exclude each other",
        _fused_faults,
        "one of the two",
        f"{BLOCK}; {CORE_FEATURES}/fusions/fused_rope.py; {CORE_FEATURES}/moe/gmm.py;"
        f" {CORE_FEATURES}/memory/reuse_fp32_param.py",
    ),
)
"""Rules over options of a run."""
