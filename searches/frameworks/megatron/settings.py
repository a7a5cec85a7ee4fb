"""How rules read Megatron-LM's flags: under the names that its argument parser stores them by."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from searches.frameworks.case import Bools, Case, NotStatedError
from searches.frameworks.megatron.layouts import ARGUMENTS
from searches.frameworks.releases import version_key
from searches.frameworks.rule import (
    Enforcement,
    FrameworkRule,
    Words,
    conditions_rule,
    setting_rule,
)

SINGLE_QUEUE = "CUDA_DEVICE_MAX_CONNECTIONS"

DEFAULTS: Mapping[str, object] = {
    "accumulate_allreduce_grads_in_fp32": False,
    "add_bias_linear": True,
    "bias_gelu_fusion": True,
    "bias_swiglu_fusion": True,
    "ckpt_format": "torch_dist",
    "cp_comm_type": ["p2p"],
    "cpu_offloading_num_layers": 0,
    "cross_entropy_fusion_impl": "native",
    "cuda_graph_impl": "none",
    "data_parallel_sharding_strategy": "optim_grads_params",
    "exp_avg_dtype": "fp32",
    "exp_avg_sq_dtype": "fp32",
    "fp8_recipe": "delayed",
    "glu_linear_offset": 0.0,
    "gradient_accumulation_fusion": True,
    "lr_warmup_iters": 0,
    "lr_warmup_samples": 0,
    "main_grads_dtype": "fp32",
    "main_params_dtype": "fp32",
    "min_lr": 0.0,
    "moe_flex_dispatcher_backend": "deepep",
    "moe_router_load_balancing_type": "aux_loss",
    "moe_router_score_function": "softmax",
    "moe_router_topk": 2,
    "moe_token_dispatcher_type": "allgather",
    "num_distributed_optimizer_instances": 1,
    "num_layers_at_end_in_bf16": 1,
    "num_layers_at_start_in_bf16": 1,
    "num_query_groups": 1,
    "optimizer": "adam",
    "outer_dp_sharding_strategy": "no_shard",
    "overlap_p2p_comm": True,
    "position_embedding_type": "learned_absolute",
    "recompute_modules": ["core_attn"],
    "transformer_impl": "transformer_engine",
    "use_gloo_process_groups": True,
}
"""Defaults of release 0.19.2 that are neither off nor empty, of the flags that rules read."""
OLD_DEFAULTS: Mapping[str, tuple[str, object]] = {
    "data_parallel_sharding_strategy": ("0.18", "no_shard"),
}
"""The release that brought a default of today, and what it was before."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "ckpt_format": ("torch", "torch_dist", "torch_dcp", "fsdp_dtensor"),
    "cross_entropy_fusion_impl": ("native", "te"),
    "cuda_graph_impl": ("none", "local", "transformer_engine", "full_iteration"),
    "data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "dataloader_type": ("single", "cyclic", "external"),
    "exp_avg_dtype": ("fp32", "fp16", "bf16", "fp8"),
    "exp_avg_sq_dtype": ("fp32", "fp16", "bf16", "fp8"),
    "fp8": ("e4m3", "hybrid"),
    "fp8_recipe": ("tensorwise", "delayed", "mxfp8", "blockwise", "custom"),
    "main_grads_dtype": ("fp32", "bf16"),
    "main_params_dtype": ("fp32", "fp16"),
    "moe_flex_dispatcher_backend": ("deepep", "hybridep", "ncclep"),
    "moe_router_score_function": ("softmax", "sigmoid", "sqrtsoftplus"),
    "moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
    "optimizer": ("adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon"),
    "outer_dp_sharding_strategy": ("no_shard", "optim"),
    "position_embedding_type": (
        "learned_absolute",
        "rope",
        "yarn",
        "mrope",
        "relative",
        "none",
    ),
    "recompute_granularity": ("full", "selective"),
    "recompute_method": ("uniform", "block"),
    "transformer_impl": ("local", "transformer_engine", "inference_optimized"),
}
"""Words that the parser of release 0.19.2 takes, of the flags that describe a layout."""


def flag(c: Case, name: str) -> Any:
    """Return a flag as the parser stores it, with the default of the run's release."""
    return c.setting(name, default_at(name, c.release, DEFAULTS.get(name)))


def default_at(name: str, release: str, default: Any) -> Any:
    """Return the default of a flag in a release; `default` is that of the newest.

    >>> default_at("data_parallel_sharding_strategy", "0.17.0", "optim_grads_params")
    'no_shard'
    """
    since, before = OLD_DEFAULTS.get(name, ("", None))
    is_older = since and release and version_key(release) < version_key(since)
    return before if is_older else default


def flag_number(c: Case, name: str) -> int:
    """Return a whole number that must be given; the rule is left out where it is not."""
    value = flag(c, name)
    if value is None:
        raise NotStatedError
    return int(value)


def flag_value(name: str) -> str:
    """Return a flag as it is typed."""
    typed = {
        "fp8": "fp8-format",
        "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
    }
    return "--" + typed.get(name, name).replace("_", "-")


enforced_in = partial(Enforcement, "megatron")
"""From a file of Megatron-LM: where and when it enforces a rule."""
ENFORCED_BY_PARSER = enforced_in(ARGUMENTS)


def flag_rule(
    code: str,
    title: str,
    broken: Callable[[Case], Bools],
    reason: Words,
    closest: Words,
    enforced: Enforcement = ENFORCED_BY_PARSER,
) -> FrameworkRule:
    """Return a rule of Megatron-LM over flags."""
    return setting_rule(code, title, broken, reason, closest, enforced)


def flags_rule(
    code: str,
    title: str,
    broken_conditions: Callable[[Case], list[str]],
    closest: Words,
    enforced: Enforcement = ENFORCED_BY_PARSER,
) -> FrameworkRule:
    """Return a rule of several conditions on flags; `broken_conditions` names broken ones."""
    return conditions_rule(code, title, broken_conditions, closest, enforced)


def is_set(c: Case, name: str) -> bool:
    """Tell whether a flag is given, or a switch on."""
    value = flag(c, name)
    return value is not None and value is not False
