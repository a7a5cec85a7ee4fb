"""What PyTorch FSDP2 through Accelerate does not run, and keys that Accelerate refuses.

The model is Hugging Face transformers' code. Settings are the keys of the launch file with dots
between the levels (`fsdp_config.fsdp_version`). Codes: ACC1xx degrees, ACC2xx pipeline, ACC3xx
experts, ACC4xx data parallelism, ACC5xx precision and recompute; from x20 on over keys.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from searches.frameworks.case import Case, NotStatedError
from searches.frameworks.common import (
    columns_divide,
    degrees_divide,
    degrees_positive,
    heads_divide,
    inputs_alone_leave,
    known_optimizer,
    kv_heads_split,
    narrow_moments,
    one_copy_of_weights,
    optimizer_on_device,
    other_kinds,
    overlap_stays,
    sequence_chunks,
    tower_on_one_rank,
    trains_adapters,
    unsplit_kinds,
    usual_rank_order,
)
from searches.frameworks.rule import (
    Enforcement,
    FrameworkRule,
    conditions_rule,
    holding,
    setting_rule,
)

PARALLELISM = "accelerate/parallelism_config.py, ParallelismConfig"
PLUGIN = "accelerate/utils/dataclasses.py, FullyShardedDataParallelPlugin"
FILE = "accelerate/commands/config/config_args.py, BaseConfig.from_yaml_file"
LAUNCH = "accelerate/commands/launch.py"
PREPARE = "accelerate/utils/fsdp_utils.py, fsdp2_prepare_model"
TP_PLAN = "transformers/integrations/tensor_parallel.py"
CONTEXT = "torch/distributed/tensor/experimental/_context_parallel"

TOP = frozenset(
    {
        "command_file",
        "commands",
        "compute_environment",
        "debug",
        "deepspeed_config",
        "distributed_type",
        "downcast_bf16",
        "dynamo_backend",
        "dynamo_config",
        "enable_cpu_affinity",
        "fp16",
        "fp8_config",
        "fsdp_config",
        "gpu_ids",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "megatron_lm_config",
        "mixed_precision",
        "mpirun_config",
        "num_machines",
        "num_processes",
        "parallelism_config",
        "rdzv_backend",
        "same_network",
        "tpu_env",
        "tpu_name",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "tpu_vm",
        "tpu_zone",
        "use_cpu",
    }
)
"""Keys that a launch file of release 1.15 may hold; any other is refused."""
BLOCKS: Mapping[str, frozenset[str]] = {
    "fsdp_config": frozenset(
        {
            "fsdp_activation_checkpointing",
            "fsdp_activation_checkpointing_offload",
            "fsdp_auto_wrap_policy",
            "fsdp_backward_prefetch",
            "fsdp_cpu_ram_efficient_loading",
            "fsdp_forward_prefetch",
            "fsdp_min_num_params",
            "fsdp_offload_params",
            "fsdp_reshard_after_forward",
            "fsdp_sharding_strategy",
            "fsdp_state_dict_type",
            "fsdp_sync_module_states",
            "fsdp_transformer_layer_cls_to_wrap",
            "fsdp_use_orig_params",
            "fsdp_version",
        }
    ),
    "parallelism_config": frozenset(
        {
            "parallelism_config_cp_backend",
            "parallelism_config_cp_comm_strategy",
            "parallelism_config_cp_size",
            "parallelism_config_dp_replicate_size",
            "parallelism_config_dp_shard_size",
            "parallelism_config_sp_attn_implementation",
            "parallelism_config_sp_backend",
            "parallelism_config_sp_seq_length",
            "parallelism_config_sp_seq_length_is_variable",
            "parallelism_config_sp_size",
            "parallelism_config_tp_size",
        }
    ),
}
"""Keys of the two blocks that release 1.15 reads; it passes over any other in silence."""
OF_FSDP1 = (
    "fsdp_backward_prefetch",
    "fsdp_forward_prefetch",
    "fsdp_sharding_strategy",
    "fsdp_sync_module_states",
    "fsdp_use_orig_params",
)
"""Keys that FSDP2 passes over, some with a warning: no refusal."""
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
SIZES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
WORDS: Mapping[str, tuple[str, ...]] = {
    "distributed_type": (
        "NO",
        "MULTI_CPU",
        "MULTI_GPU",
        "MULTI_NPU",
        "MULTI_MLU",
        "MULTI_SDAA",
        "MULTI_MUSA",
        "MULTI_XPU",
        "DEEPSPEED",
        "FSDP",
        "XLA",
        "MEGATRON_LM",
        "MULTI_HPU",
        "MULTI_NEURON",
    ),
    "mixed_precision": ("no", "fp16", "bf16", "fp8"),
    "fsdp_config.fsdp_auto_wrap_policy": (
        "TRANSFORMER_BASED_WRAP",
        "SIZE_BASED_WRAP",
        "NO_WRAP",
    ),
    "fsdp_config.fsdp_state_dict_type": (
        "FULL_STATE_DICT",
        "LOCAL_STATE_DICT",
        "SHARDED_STATE_DICT",
    ),
    "parallelism_config.parallelism_config_cp_backend": ("torch",),
    "parallelism_config.parallelism_config_sp_backend": ("deepspeed",),
    "parallelism_config.parallelism_config_cp_comm_strategy": ("allgather", "alltoall"),
}
"""Words that keys of release 1.15 take."""

_enforced_in = partial(Enforcement, "fsdp2")


LAYOUT_RULES: tuple[FrameworkRule, ...] = (
    degrees_positive("ACC100", "fsdp2", f"{PARALLELISM}.__post_init__"),
    degrees_divide("ACC101", "fsdp2", f"{PARALLELISM}._validate_accelerator"),
    heads_divide("ACC102", "fsdp2", TP_PLAN, "first step"),
    kv_heads_split("ACC103", "fsdp2", TP_PLAN, "first step"),
    columns_divide("ACC104", "fsdp2", TP_PLAN, "planner"),
    FrameworkRule(
        "ACC105",
        "fsdp2",
        "Megatron's sequence parallelism",
        "planner",
        TP_PLAN,
        lambda c: (c.sp == 1) & (c.tp > 1),
        "sequence parallelism: transformers' plans keep whole activations on every rank",
        "sp off",
    ),
    sequence_chunks("ACC106", "fsdp2", CONTEXT, "first step"),
    FrameworkRule(
        "ACC107",
        "fsdp2",
        "all-to-alls over attention heads (Ulysses)",
        "planner",
        PARALLELISM,
        lambda c: (c.cp > 1) & c.is_exchange("a2a"),
        "context parallelism by a2a: Ulysses needs DeepSpeed's engine, not FSDP2",
        "cp_comm all-gather or p2p",
    ),
    FrameworkRule(
        "ACC109",
        "fsdp2",
        "context parallelism of other layers than attention over all keys",
        "planner",
        CONTEXT,
        lambda c: (c.cp > 1) & bool(other_kinds(c.model)),
        lambda c: (
            f"cp {c.cp} with layers of {', '.join(other_kinds(c.model))}: PyTorch splits sequences"
            " inside scaled dot products, without a mask"
        ),
        "cp 1",
    ),
    FrameworkRule(
        "ACC110",
        "fsdp2",
        "tensor parallelism of state-space and linear layers",
        "planner",
        TP_PLAN,
        lambda c: (c.tp > 1) & bool(unsplit_kinds(c.model)),
        lambda c: (
            f"tp {c.tp} with layers of {', '.join(unsplit_kinds(c.model))}: the plans of"
            " transformers split neither their heads nor sublayers alone"
        ),
        "tp 1",
    ),
    tower_on_one_rank("ACC111", "fsdp2", f"{TP_PLAN}; {CONTEXT}"),
    usual_rank_order("ACC108", "fsdp2", f"{PARALLELISM}._get_mesh"),
    FrameworkRule(
        "ACC201",
        "fsdp2",
        "pipeline",
        "planner",
        PARALLELISM,
        lambda c: c.pp > 1,
        lambda c: f"pipeline of {c.pp}: Accelerate has none in training",
        "pp 1",
    ),
    FrameworkRule(
        "ACC202",
        "fsdp2",
        "schedule of a pipeline",
        "planner",
        PARALLELISM,
        lambda c: c.is_schedule("none") == 0,
        lambda c: f"schedule {c.schedule_name}: Accelerate has no pipeline in training",
        "pp 1",
    ),
    FrameworkRule(
        "ACC301",
        "fsdp2",
        "expert parallelism",
        "planner",
        PARALLELISM,
        lambda c: (c.ep > 1) | (c.etp > 1),
        lambda c: f"ep {c.ep}, etp {c.etp}: no dimension of Accelerate's mesh",
        "ep 1 and etp 1",
    ),
    FrameworkRule(
        "ACC302",
        "fsdp2",
        "experts with tensor parallelism",
        "planner",
        TP_PLAN,
        lambda c: (c.model.n_experts > 0) & (c.tp > 1),
        lambda c: f"experts with tp {c.tp}: how transformers splits them depends on the model",
        "tp 1",
    ),
    FrameworkRule(
        "ACC303",
        "fsdp2",
        "experts that FSDP2 pads",
        "planner",
        "transformers/models, class of the experts of each; torch/distributed/fsdp",
        lambda c: (c.model.n_experts > 0) & (c.zero >= 2) & (c.model.n_experts % c.dp_shard > 0),
        lambda c: (
            f"experts: {c.model.n_experts} in one tensor of transformers, which FSDP2 cuts"
            f" by experts over {c.dp_shard} ranks: most of its shards would be padding"
        ),
        "ZeRO groups that divide the experts",
    ),
    FrameworkRule(
        "ACC401",
        "fsdp2",
        "gradients that are not sharded",
        "planner",
        PREPARE,
        lambda c: (c.zero < 2) & ((c.zero > 0) | (not trains_adapters(c))),
        lambda c: f"ZeRO-{c.zero}: FSDP2 shards weights, gradients and optimizer",
        "zero 2, or zero 3",
    ),
    FrameworkRule(
        "ACC402",
        "fsdp2",
        "nothing to shard over",
        "start",
        f"{PARALLELISM}._validate_accelerator",
        lambda c: (c.zero >= 2) & (c.dp_shard < 2),
        lambda c: f"ZeRO-{c.zero} over {c.dp_shard} rank: FSDP needs a dimension to shard over",
        "dp_shard_size or cp_size above 1",
    ),
    FrameworkRule(
        "ACC403",
        "fsdp2",
        "ZeRO groups that do not hold whole contexts",
        "planner",
        PARALLELISM,
        lambda c: (c.zero > 0) & (c.dp_shard % c.cp > 0),
        lambda c: f"ZeRO groups of {c.dp_shard}: no multiple of cp {c.cp}",
        "groups of a multiple of cp",
    ),
    FrameworkRule(
        "ACC404",
        "fsdp2",
        "replicas alone beside tensor or context parallelism",
        "parse",
        f"{PARALLELISM}.__post_init__",
        lambda c: ((c.tp > 1) | (c.cp > 1)) & (c.zero > 0) & (c.dp_shard < 2 * c.cp) & (c.dp > 1),
        lambda c: (
            f"ZeRO groups of {c.dp_shard} with tp {c.tp} and cp {c.cp}: replicas need"
            " dp_shard_size above 1 beside them"
        ),
        "larger ZeRO groups",
    ),
    optimizer_on_device("ACC405", "fsdp2", PLUGIN, "fsdp_offload_params"),
    overlap_stays("ACC406", "fsdp2", PLUGIN),
    inputs_alone_leave("ACC407", "fsdp2", PLUGIN, "fsdp_activation_checkpointing_offload"),
    one_copy_of_weights("ACC408", "fsdp2", PLUGIN),
    FrameworkRule(
        "ACC409",
        "fsdp2",
        "activations on the host before Accelerate 1.15",
        "planner",
        PLUGIN,
        lambda c: c.activation_offload_layers > 0,
        "activations on the host: fsdp_activation_checkpointing_offload is in no release before"
        " 1.15",
        "activation_offload off",
        versions="<1.15",
    ),
    FrameworkRule(
        "ACC501",
        "fsdp2",
        "precision that the launch file cannot say",
        "planner",
        PLUGIN,
        lambda c: c.job.base_precision not in ("bf16", "fp16", "fp32", "bf16-true"),
        lambda c: f"precision {c.job.label}: mixed_precision is bf16, fp16 or no",
        "precision bf16",
    ),
    narrow_moments("ACC505", "fsdp2", PLUGIN),
    known_optimizer("ACC410", "fsdp2", "torch/optim, torchao/optim"),
    FrameworkRule(
        "ACC502",
        "fsdp2",
        "recompute of the attention core",
        "planner",
        PLUGIN,
        lambda c: c.is_recompute("selective"),
        "selective recompute: fsdp_activation_checkpointing recomputes whole layers",
        "recompute full",
    ),
    FrameworkRule(
        "ACC503",
        "fsdp2",
        "some layers recomputed",
        "planner",
        PLUGIN,
        lambda c: (
            c.is_recompute("full")
            & (c.recompute_layers > 0)
            & (c.recompute_layers < c.longest_stage)
        ),
        lambda c: (
            f"recompute of {c.recompute_layers} layers: fsdp_activation_checkpointing"
            " recomputes all or none"
        ),
        "all of them",
    ),
    FrameworkRule(
        "ACC504",
        "fsdp2",
        "parts of a model that transformers does not train",
        "planner",
        "transformers",
        lambda c: (
            (c.model.mtp_layers > 0) | (c.model.capacity_factor > 0) | c.model.forced_balance
        ),
        "model: transformers has no multi-token prediction, no capacity of experts and no"
        " routing forced to balance",
        "mtp_layers 0, no capacity_factor, forced_balance off",
    ),
)
"""Rules over layouts alone."""


def _size(c: Case, name: str) -> int:
    return int(c.setting(f"parallelism_config.parallelism_config_{name}_size", 1))


def _fsdp(c: Case, name: str, default: Any = None) -> Any:
    """Return a key of the FSDP block, with or without its first word."""
    block, plain = "fsdp_config", name.removeprefix("fsdp_")
    return c.setting(f"{block}.{name}", c.setting(f"{block}.{plain}", default))


def _sharded(c: Case) -> bool:
    return bool(c.setting("distributed_type") == "FSDP")


def _version(c: Case) -> int:
    return int(_fsdp(c, "fsdp_version", 1))


def _meshed(c: Case) -> bool:
    """Tell whether the file has a `parallelism_config` block."""
    return any(name.partition(".")[0] == "parallelism_config" for name in c.settings)


def _strange_top(c: Case) -> list[str]:
    return [x for x in dict.fromkeys(n.partition(".")[0] for n in c.settings) if x not in TOP]


def _unread(c: Case) -> list[str]:
    results = []
    for block, names in BLOCKS.items():
        inside = [x[len(block) + 1 :] for x in c.settings if x.startswith(f"{block}.")]
        full = {x: x if x.startswith("fsdp") else f"fsdp_{x}" for x in inside}
        wanted = full if block == "fsdp_config" else {x: x for x in inside}
        results += [f"{block}.{x}" for x, name in wanted.items() if name not in names]
    return results


def _odd_words(c: Case) -> list[str]:
    """Return the keys whose word is not known, with it; words are read without their case."""
    results = []
    for name, choices in WORDS.items():
        value = c.setting(name)
        value = "no" if value is False and name == "mixed_precision" else value
        if value is not None and str(value).lower() not in [word.lower() for word in choices]:
            results.append(f"{name} {value}")
    return results


def _mesh(c: Case) -> list[str]:
    if not _meshed(c):
        return []
    sizes = {name: _size(c, name) for name in SIZES}
    replicate, shard, tp, cp, sp = sizes.values()
    processes = c.setting("num_processes")
    if processes is None:
        raise NotStatedError
    total = replicate * shard * tp * cp * sp
    return holding(
        {
            f"sizes below 1: {', '.join(n for n, size in sizes.items() if size < 1)}": min(
                sizes.values()
            )
            < 1,
            f"{' x '.join(f'{n} {size}' for n, size in sizes.items())} are not "
            f"{processes} processes": total != processes and sp == 1,
            "cp_size and sp_size exclude each other": cp > 1 and sp > 1,
            "tp_size or cp_size with dp_replicate_size needs dp_shard_size above 1": (
                tp > 1 or cp > 1
            )
            and replicate > 1
            and shard == 1,
            "FSDP needs dp_shard_size or cp_size above 1": _sharded(c)
            and _version(c) == 2
            and shard == 1
            and cp == 1,
        }
    )


def _second_version(c: Case) -> list[str]:
    if not _sharded(c) or _version(c) != 2:
        return []
    reshard = _fsdp(c, "fsdp_reshard_after_forward", True)
    named = str(reshard).lower()
    return holding(
        {
            f"fsdp_reshard_after_forward {reshard}: true or false": named
            not in ("true", "false", "1", "0", "yes", "no", "y", "n", "t", "f", "on", "off"),
            "fsdp_state_dict_type LOCAL_STATE_DICT is not in FSDP2": str(
                _fsdp(c, "fsdp_state_dict_type", "")
            ).upper()
            == "LOCAL_STATE_DICT",
        }
    )


def _offloaded(c: Case) -> list[str]:
    if not _fsdp(c, "fsdp_activation_checkpointing_offload", False):
        return []
    return holding(
        {
            "fsdp_activation_checkpointing_offload needs fsdp_activation_checkpointing": not _fsdp(
                c, "fsdp_activation_checkpointing", False
            ),
            "fsdp_activation_checkpointing_offload needs fsdp_version 2": _version(c) != 2,
        }
    )


SETTINGS_RULES: tuple[FrameworkRule, ...] = (
    setting_rule(
        "ACC120",
        "key that a launch file cannot hold",
        lambda c: bool(_strange_top(c)),
        lambda c: f"unknown: {', '.join(_strange_top(c))}",
        "another spelling",
        _enforced_in(FILE),
    ),
    setting_rule(
        "ACC121",
        "key that Accelerate never reads",
        lambda c: bool(_unread(c)),
        lambda c: f"{', '.join(_unread(c))}: passed over in silence",
        "another spelling",
        _enforced_in(LAUNCH, "ignored"),
    ),
    setting_rule(
        "ACC122",
        "no kind of distribution",
        lambda c: c.setting("distributed_type") is None,
        "distributed_type is needed",
        "distributed_type: FSDP",
        _enforced_in(FILE),
    ),
    setting_rule(
        "ACC123",
        "word that a key does not take",
        lambda c: bool(_odd_words(c)),
        lambda c: f"unknown: {', '.join(_odd_words(c))}",
        lambda c: "; ".join(
            f"{name} {'|'.join(choices)}"
            for name, choices in WORDS.items()
            if any(odd.startswith(f"{name} ") for odd in _odd_words(c))
        ),
        _enforced_in(f"{PLUGIN}; {PARALLELISM}"),
    ),
    conditions_rule(
        "ACC124",
        "sizes of the mesh that do not go together",
        _mesh,
        "sizes whose product is num_processes",
        _enforced_in(PARALLELISM, "start"),
    ),
    setting_rule(
        "ACC125",
        "mesh without FSDP2",
        lambda c: (
            _meshed(c)
            and c.setting("distributed_type") != "DEEPSPEED"
            and not (_sharded(c) and _version(c) == 2)
        ),
        "parallelism_config needs distributed_type FSDP and fsdp_version 2",
        "fsdp_config with fsdp_version 2",
        _enforced_in(f"{LAUNCH}; {PARALLELISM}", "start"),
    ),
    setting_rule(
        "ACC126",
        "processes that do not fill the machines",
        lambda c: (
            c.setting("num_processes") is not None
            and (
                c.setting("num_processes") < 1
                or c.setting("num_processes") % max(1, c.setting("num_machines", 1)) > 0
            )
        ),
        lambda c: (
            f"num_processes {c.setting('num_processes')} over"
            f" {c.setting('num_machines', 1)} machines"
        ),
        "a multiple of num_machines",
        _enforced_in(LAUNCH),
    ),
    setting_rule(
        "ACC127",
        "settings that a tool on FSDP2 refuses",
        lambda c: bool(c.refused),
        lambda c: "; ".join(c.refused),
        "one of the two",
        _enforced_in("torchtune 0.6.1, recipes/full_finetune_distributed.py", "start"),
    ),
    conditions_rule(
        "ACC420",
        "values that FSDP2 does not take",
        _second_version,
        "fsdp_reshard_after_forward true or false, SHARDED_STATE_DICT",
        _enforced_in(PLUGIN, "start"),
    ),
    setting_rule(
        "ACC421",
        "sharding that FSDP1 does not know",
        lambda c: (
            _sharded(c)
            and _version(c) == 1
            and _fsdp(c, "fsdp_sharding_strategy") is not None
            and str(_fsdp(c, "fsdp_sharding_strategy")).upper()
            not in (*STRATEGIES, *(str(i + 1) for i in range(len(STRATEGIES))))
        ),
        lambda c: f"fsdp_sharding_strategy {_fsdp(c, 'fsdp_sharding_strategy')}",
        ", ".join(STRATEGIES),
        _enforced_in(PLUGIN, "start"),
    ),
    conditions_rule(
        "ACC520",
        "offloaded inputs of recomputed layers without what they need",
        _offloaded,
        "fsdp_version 2 with fsdp_activation_checkpointing",
        _enforced_in(PLUGIN, "start"),
    ),
    setting_rule(
        "ACC521",
        "torchao with loading on one rank",
        lambda c: (
            _sharded(c)
            and str(
                c.setting("fp8_config.backend", c.setting("fp8_config.fp8_backend", ""))
            ).upper()
            == "AO"
            and bool(_fsdp(c, "fsdp_cpu_ram_efficient_loading", True))
        ),
        "fp8 by torchao excludes fsdp_cpu_ram_efficient_loading",
        "fsdp_cpu_ram_efficient_loading: false",
        _enforced_in("accelerate/accelerator.py, Accelerator", "start"),
    ),
)
"""Rules over the keys of an existing launch file."""

RULES = LAYOUT_RULES + SETTINGS_RULES
