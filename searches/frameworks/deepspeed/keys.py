"""Keys of a DeepSpeed JSON that DeepSpeed refuses or never reads.

Settings are the keys of the file with dots between the levels (`zero_optimization.stage`). The
value `auto` is filled in by the Hugging Face Trainer: rules that read it cannot be decided. Codes
go on from those of `deepspeed`: DSP12x batch, degrees and keys, DSP31x experts, DSP41x ZeRO,
DSP51x precision.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from searches.frameworks.case import Case, NotStatedError
from searches.frameworks.deepspeed.layouts import AUTO_EP, CONFIG, ENGINE
from searches.frameworks.rule import (
    Enforcement,
    FrameworkRule,
    conditions_rule,
    holding,
    setting_rule,
)

ZERO_CONFIG = "deepspeed/runtime/zero/config.py, DeepSpeedZeroConfig"
STRICT = "deepspeed/runtime/config_utils.py, DeepSpeedConfigModel"

READ = frozenset(
    {
        "activation_checkpointing",
        "aio",
        "autotuning",
        "bf16",
        "bfloat16",
        "checkpoint",
        "comet",
        "comms_logger",
        "communication_data_type",
        "compile",
        "csv_monitor",
        "data_efficiency",
        "data_parallel_size",
        "data_types",
        "dataloader_drop_last",
        "datastates_ckpt",
        "disable_allgather",
        "disable_python_gc",
        "dump_state",
        "expert_parallel",
        "flops_profiler",
        "fp16",
        "gradient_accumulation_steps",
        "gradient_allreduce_op",
        "gradient_clipping",
        "gradient_predivide_factor",
        "hybrid_engine",
        "log_level",
        "managed_gradient_accumulation",
        "memory_breakdown",
        "optimizer",
        "pipeline",
        "prescale_gradients",
        "scheduler",
        "seq_parallel_communication_data_type",
        "sequence_parallel_size",
        "steps_per_print",
        "tensor_parallel",
        "tensorboard",
        "timers",
        "torch_autocast",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "use_data_before_expert_parallelism",
        "vocabulary_size",
        "wall_clock_breakdown",
        "wandb",
        "weight_quantization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    }
)
"""Top-level keys that release 0.19.8 reads; it passes over any other in silence."""

REMOVED = frozenset(
    {
        "amp",
        "compression_training",
        "curriculum_learning",
        "eigenvalue",
        "elasticity",
        "graph_harvesting",
        "nebula",
        "progressive_layer_drop",
        "quantize_training",
        "sparse_attention",
        "sparse_gradients",
        "zero_optimization.mics_shard_size",
        "zero_optimization.mics_hierarchical_params_gather",
        "zero_optimization.zeropp_loco_param",
    }
)
"""Keys of features that are gone; their presence alone is refused."""

BLOCKS: Mapping[str, frozenset[str]] = {
    "zero_optimization": frozenset(
        {
            "allgather_bucket_size",
            "allgather_partitions",
            "allgather_sequential",
            "compute_grad_norm",
            "contiguous_gradients",
            "cpu_offload",
            "cpu_offload_param",
            "cpu_offload_use_pin_memory",
            "elastic_checkpoint",
            "enable_sanity_checks",
            "gather_16bit_weights_on_model_save",
            "ignore_unused_parameters",
            "leaf_module",
            "legacy_stage1",
            "load_from_fp32_weights",
            "log_trace_cache_warnings",
            "max_live_parameters",
            "max_reuse_distance",
            "memory_efficient_linear",
            "model_persistence_threshold",
            "module_granularity_threshold",
            "offload_optimizer",
            "offload_param",
            "overlap_comm",
            "override_module_apply",
            "param_persistence_threshold",
            "parameter_alignment",
            "pipeline_loading_checkpoint",
            "prefetch_bucket_size",
            "reduce_bucket_size",
            "reduce_scatter",
            "round_robin_gradients",
            "save_muon_momentum_buffer_in_memory",
            "stage",
            "stage3_allgather_sequential",
            "stage3_gather_16bit_weights_on_model_save",
            "stage3_gather_fp16_weights_on_model_save",
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
            "stage3_model_persistence_threshold",
            "stage3_module_granularity_threshold",
            "stage3_param_persistence_threshold",
            "stage3_prefetch_bucket_size",
            "stage3_use_all_reduce_for_fetch_params",
            "sub_group_size",
            "use_all_reduce_for_fetch_params",
            "use_multi_rank_bucket_allreduce",
            "zenflow",
            "zero_hpz_partition_size",
            "zero_quantized_gradients",
            "zero_quantized_nontrainable_weights",
            "zero_quantized_weights",
        }
    ),
    "bf16": frozenset(
        {
            "bf16_master_weights_and_grads",
            "bf16_optimizer_states",
            "check_grad_overflow",
            "enabled",
            "immediate_grad_update",
        }
    ),
    "fp16": frozenset(
        {
            "auto_cast",
            "consecutive_hysteresis",
            "enabled",
            "fp16_master_weights_and_grads",
            "hysteresis",
            "initial_scale_power",
            "loss_scale",
            "loss_scale_window",
            "min_loss_scale",
        }
    ),
    "tensor_parallel": frozenset(
        {
            "autotp_size",
            "dtype",
            "injection_policy_tuple",
            "keep_module_on_host",
            "kernel_inject",
            "partition_config",
            "preset_model",
            "replace_with_kernel_inject",
            "tensor_parallel",
            "tp",
            "tp_overlap_comm",
            "vocab_parallel_ce_backend",
            "vocab_parallel_lm_head",
        }
    ),
    "compile": frozenset(
        {
            "autoep_non_moe",
            "debug_log",
            "deepcompile",
            "double_buffer",
            "free_activation",
            "free_activation_threshold",
            "keep_all_input_tensors",
            "keep_int_input_tensors",
            "offload_activation",
            "offload_activation_pin_memory",
            "offload_opt_states",
            "offload_parameters",
            "passes",
            "symmetric_memory",
            "sync_after_allgather",
            "sync_after_reduce",
            "sync_before_allgather",
            "sync_before_reduce",
        }
    ),
    "zero_optimization.offload_param": frozenset(
        {
            "buffer_count",
            "buffer_size",
            "device",
            "max_in_cpu",
            "nvme_path",
            "pin_memory",
        }
    ),
    "zero_optimization.offload_optimizer": frozenset(
        {
            "buffer_count",
            "cpuadam_cores_perc",
            "device",
            "fast_init",
            "nvme_path",
            "pin_memory",
            "pipeline_read",
            "pipeline_write",
            "ratio",
            "super_offload",
        }
    ),
}
"""Keys of the blocks in which release 0.19.8 refuses any other."""

TESTED_WITH_ZERO = ("adam", "adamw", "adagrad", "lion", "muon")
"""Optimizers that ZeRO takes without `zero_allow_untested_optimizer`."""
AUTO = "auto"

_enforced_in = partial(Enforcement, "deepspeed")


def key(c: Case, name: str, default: Any = None) -> Any:
    """Return the value of a key, `default` where it is missing; `auto` cannot be read."""
    value = c.setting(name, default)
    if isinstance(value, str) and value == AUTO:
        raise NotStatedError
    return value


def has(c: Case, name: str) -> bool:
    """Tell whether a key or a block of that name is in the file."""
    return any(one == name or one.startswith(f"{name}.") for one in c.settings)


def _top(c: Case) -> list[str]:
    """Return the top-level keys in the order of the file."""
    return list(dict.fromkeys(name.partition(".")[0] for name in c.settings))


def _unread(c: Case) -> list[str]:
    return [name for name in _top(c) if name not in READ and name not in REMOVED]


def _strange(c: Case) -> list[str]:
    """Return the keys that their block refuses."""
    results = []
    for block, names in BLOCKS.items():
        inside = [x[len(block) + 1 :] for x in c.settings if x.startswith(f"{block}.")]
        keys = dict.fromkeys(x.partition(".")[0] for x in inside)
        results += [f"{block}.{x}" for x in keys if x not in names]
    return [name for name in results if name not in REMOVED]


def _stage(c: Case) -> int:
    return int(key(c, "zero_optimization.stage", 0))


BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""The three batch sizes, the first of which is the product of the others over all ranks."""


def _batch_below_1(c: Case) -> list[str]:
    return [f"{name} {key(c, name)}" for name in BATCH if key(c, name, 1) < 1]


def _batch(c: Case) -> list[str]:
    """Return what is wrong with the three batch sizes, over the ranks that DeepSpeed counts."""
    total, micro, steps = (key(c, name) for name in BATCH)
    if total is None and micro is None:
        return ["train_batch_size or train_micro_batch_size_per_gpu is needed"]
    if total is None:
        return []
    ranks = c.n_devices // (c.pp * c.cp)
    given_micro, given_steps = micro, steps
    if micro is None:
        micro = total // ranks if steps is None else total // ranks // steps
    if steps is None:
        steps = 1 if given_micro is None else total // micro // ranks
    if micro * steps * ranks == total:
        return []
    how = f"{micro} x {steps} x {ranks} ranks"
    if given_micro is None or given_steps is None:
        how += ", rounded down"
    ranked = f"; AutoTP counts all ranks, not the {c.n_devices // (c.pp * c.cp * c.tp)} replicas"
    return [f"train_batch_size {total} is not {how}" + ranked * (c.tp > 1)]


def _whole_batch(c: Case) -> str:
    """Return the batch that goes with the other sizes, and how to do without it."""
    alone = "micro batch and accumulation steps alone"
    total = key(c, "train_batch_size")
    if total is None:
        return alone
    sizes = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    micro, steps = (key(c, name) for name in sizes)
    unit = (micro or 1) * (steps or 1) * (c.n_devices // (c.pp * c.cp))
    # With all three stated only one batch goes with the others.
    batch = unit if micro and steps else -(-total // unit) * unit
    return f"train_batch_size {batch}, or {alone}"


def _zero_only(c: Case) -> list[str]:
    """Return the settings of ZeRO-3 that stand beside another stage."""
    if _stage(c) == 3:
        return []
    zero = "zero_optimization"
    return holding(
        {
            f"{zero}.zero_hpz_partition_size acts in ZeRO-3 alone": key(
                c, f"{zero}.zero_hpz_partition_size", 1
            )
            > 1,
            f"{zero}.zero_quantized_weights acts in ZeRO-3 alone": key(
                c, f"{zero}.zero_quantized_weights", False
            ),
            f"{zero}.zero_quantized_gradients acts in ZeRO-3 alone": key(
                c, f"{zero}.zero_quantized_gradients", False
            ),
            f"{zero}.offload_param needs ZeRO-3": key(c, f"{zero}.offload_param.device", "none")
            != "none",
            f"{zero}.offload_optimizer to nvme needs ZeRO-3": key(
                c, f"{zero}.offload_optimizer.device", "none"
            )
            == "nvme",
            f"{zero}.offload_optimizer.ratio below 1 needs ZeRO-3": key(
                c, f"{zero}.offload_optimizer.ratio", 1.0
            )
            < 1.0,
        }
    )


def _16_bit_states(c: Case) -> list[str]:
    states, grads = "bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"
    fp16 = "fp16.fp16_master_weights_and_grads"
    named = [name for name in (states, grads, fp16) if key(c, name, False)]
    alone = key(c, states, False) and not key(c, grads, False)
    return [f"{name} needs ZeRO 1 to 3" for name in named if _stage(c) == 0] + [
        f"{states} needs {grads}"
    ] * bool(alone)


def _model_type(c: Case) -> str:
    if key(c, "bf16.enabled", key(c, "bfloat16.enabled", False)):
        return "bf16"
    return "fp16" if key(c, "fp16.enabled", False) else "fp32"


_TYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
}


def _summed_in(c: Case) -> str:
    """Return the type in which gradients are accumulated; the model's unless it is named."""
    named = key(c, "data_types.grad_accum_dtype")
    return _TYPES.get(str(named), str(named)) if named else _model_type(c)


def _experts(c: Case) -> list[str]:
    block = "expert_parallel"
    if not key(c, f"{block}.enabled", False):
        return []
    ep = int(key(c, f"{block}.autoep_size", 1))
    zero, offload = "zero_optimization", ("offload_optimizer", "offload_param")
    offloads = any(
        key(c, f"{zero}.{name}.device", "none") != "none" or f"{zero}.{name}" in c.settings
        for name in offload
    )
    preset = key(c, f"{block}.preset_model")
    tp_preset = key(c, "tensor_parallel.preset_model")
    return holding(
        {
            f"{block}.expert_tensor_parallel_size is reserved, only 1 is supported": key(
                c, f"{block}.expert_tensor_parallel_size", 1
            )
            != 1,
            "AutoTP beside AutoEP needs autoep_size above 1": c.tp > 1 and ep == 1,
            "AutoTP beside AutoEP excludes offload": c.tp > 1 and offloads,
            "AutoTP beside AutoEP excludes DeepCompile": c.tp > 1
            and key(c, "compile.deepcompile", False),
            "AutoTP beside AutoEP excludes use_data_before_expert_parallelism": c.tp > 1
            and key(c, "use_data_before_expert_parallelism", False),
            "tensor_parallel.preset_model and expert_parallel.preset_model differ": preset
            is not None
            and tp_preset is not None
            and preset != tp_preset,
            "AutoEP with ZeRO-3 excludes zero_quantized_gradients": _stage(c) == 3
            and key(c, f"{zero}.zero_quantized_gradients", False),
        }
    )


RULES: tuple[FrameworkRule, ...] = (
    setting_rule(
        "DSP120",
        "key of a removed feature",
        lambda c: any(has(c, name) for name in REMOVED),
        lambda c: f"{', '.join(sorted(n for n in REMOVED if has(c, n)))}: removed from DeepSpeed",
        "leave it out",
        _enforced_in(f"{CONFIG}, _reject_removed_config_keys", versions=">=0.19.8"),
    ),
    setting_rule(
        "DSP121",
        "key that its block does not know",
        lambda c: bool(_strange(c)),
        lambda c: f"unknown: {', '.join(_strange(c))}",
        "another spelling",
        _enforced_in(STRICT, versions=">=0.19"),
    ),
    setting_rule(
        "DSP122",
        "key that DeepSpeed never reads",
        lambda c: bool(_unread(c)),
        lambda c: f"{', '.join(_unread(c))}: passed over in silence",
        "another spelling",
        _enforced_in(CONFIG, "ignored", versions=">=0.19"),
    ),
    setting_rule(
        "DSP119",
        "key that stands twice",
        lambda c: bool(c.refused),
        lambda c: "; ".join(c.refused),
        "one of the two",
        _enforced_in("deepspeed/runtime/config_utils.py, dict_raise_error_on_duplicate_keys"),
    ),
    conditions_rule(
        "DSP123",
        "batch sizes that do not multiply",
        _batch,
        _whole_batch,
        _enforced_in(f"{CONFIG}._batch_assertion", covers=("DSP115",)),
    ),
    setting_rule(
        "DSP124",
        "mesh of other than all ranks",
        lambda c: (
            has(c, "data_parallel_size")
            and has(c, "sequence_parallel_size")
            and key(c, "data_parallel_size") * key(c, "sequence_parallel_size") != c.n_devices
        ),
        lambda c: (
            f"data_parallel_size {key(c, 'data_parallel_size')} x sequence_parallel_size"
            f" {key(c, 'sequence_parallel_size')} are not {c.n_devices} ranks"
        ),
        "leave data_parallel_size out",
        _enforced_in("deepspeed/__init__.py, initialize", "start"),
    ),
    setting_rule(
        "DSP125",
        "gradient norm clipped by the optimizer",
        lambda c: has(c, "optimizer.params.max_grad_norm"),
        "optimizer.params.max_grad_norm is refused",
        "gradient_clipping",
        _enforced_in(f"{ENGINE}._configure_basic_optimizer", "start"),
    ),
    conditions_rule(
        "DSP126",
        "batch size below 1",
        _batch_below_1,
        "1 or more",
        _enforced_in(f"{CONFIG}._batch_assertion"),
    ),
    conditions_rule(
        "DSP310",
        "AutoEP beside what excludes it",
        _experts,
        "leave the other setting out",
        _enforced_in(
            f"{AUTO_EP}, validate_folding_global; {ENGINE}._validate_zero3_moe_compatibility",
            "start",
        ),
    ),
    setting_rule(
        "DSP410",
        "ZeRO stage that does not exist",
        lambda c: _stage(c) not in (0, 1, 2, 3),
        lambda c: f"zero_optimization.stage {_stage(c)}",
        "0 to 3",
        _enforced_in(ZERO_CONFIG),
    ),
    conditions_rule(
        "DSP411",
        "settings of ZeRO-3 beside another stage",
        _zero_only,
        "zero_optimization.stage 3",
        _enforced_in(f"{ZERO_CONFIG}; {ENGINE}"),
    ),
    setting_rule(
        "DSP412",
        "hpZ groups that do not divide the ranks",
        lambda c: (
            key(c, "zero_optimization.zero_hpz_partition_size", 1) > 1
            and c.n_devices
            % min(key(c, "zero_optimization.zero_hpz_partition_size", 1), c.n_devices)
            > 0
        ),
        lambda c: (
            "zero_optimization.zero_hpz_partition_size"
            f" {key(c, 'zero_optimization.zero_hpz_partition_size')} does not divide {c.n_devices}"
            " ranks"
        ),
        "the devices of a node",
        _enforced_in("deepspeed/utils/groups.py, _create_zero_param_parallel_group", "start"),
    ),
    setting_rule(
        "DSP413",
        "summed gradients with ZeRO-3",
        lambda c: str(key(c, "gradient_allreduce_op", "mean")).lower() == "sum" and _stage(c) == 3,
        "gradient_allreduce_op sum with ZeRO-3",
        "gradient_allreduce_op mean",
        _enforced_in(f"{CONFIG}._do_error_check"),
    ),
    setting_rule(
        "DSP414",
        "no gradient norm outside of ZeRO 1 and 2",
        lambda c: (
            not key(c, "zero_optimization.compute_grad_norm", True) and _stage(c) not in (1, 2)
        ),
        lambda c: f"zero_optimization.compute_grad_norm false with ZeRO-{_stage(c)}",
        "leave it out",
        _enforced_in(ZERO_CONFIG, versions=">=0.19"),
    ),
    setting_rule(
        "DSP415",
        "optimizer that ZeRO was not tested with",
        lambda c: (
            _stage(c) > 0
            and not key(c, "zero_allow_untested_optimizer", False)
            and has(c, "optimizer.type")
            and str(key(c, "optimizer.type")).lower() not in TESTED_WITH_ZERO
        ),
        lambda c: f"optimizer.type {key(c, 'optimizer.type')} with ZeRO",
        "zero_allow_untested_optimizer true",
        _enforced_in(f"{ENGINE}._do_optimizer_sanity_check", "start"),
    ),
    setting_rule(
        "DSP510",
        "bf16 beside fp16",
        lambda c: key(c, "bf16.enabled", False) and key(c, "fp16.enabled", False),
        "bf16.enabled and fp16.enabled exclude each other",
        "one of the two",
        _enforced_in(f"{CONFIG}._initialize_params"),
    ),
    conditions_rule(
        "DSP511",
        "states in 16 bits without ZeRO",
        _16_bit_states,
        "zero_optimization.stage 1",
        _enforced_in(f"{CONFIG}._do_error_check"),
    ),
    setting_rule(
        "DSP512",
        "gradients accumulated in another type without ZeRO",
        lambda c: _stage(c) == 0 and _summed_in(c) != _model_type(c),
        lambda c: (
            f"data_types.grad_accum_dtype {_summed_in(c)} with {_model_type(c)} weights and ZeRO-0"
        ),
        "zero_optimization.stage 1",
        _enforced_in(f"{ENGINE}._do_optimizer_sanity_check", "start"),
    ),
    setting_rule(
        "DSP513",
        "weights of another type than the precision",
        lambda c: (
            has(c, "data_types.param_dtype")
            and _TYPES.get(
                str(key(c, "data_types.param_dtype")), str(key(c, "data_types.param_dtype"))
            )
            != _model_type(c)
        ),
        lambda c: (
            f"data_types.param_dtype {key(c, 'data_types.param_dtype')} with"
            f" {_model_type(c)} enabled"
        ),
        "leave it out",
        _enforced_in(ENGINE, "start", versions=">=0.19"),
    ),
)
"""Rules over the keys of an existing configuration."""
