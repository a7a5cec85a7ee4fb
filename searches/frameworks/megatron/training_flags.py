"""Flags that Megatron-LM refuses beside each other: experts, optimizer, recompute, precision.

Codes go on from those of `megatron`: MLM32x-33x experts and sequence parallelism, MLM41x-42x data
parallelism and optimizer, MLM51x-52x recompute and precision.
"""

from typing import Any

from costmodels.axes import OFFLOAD_MODULES
from searches.frameworks.case import Case
from searches.frameworks.megatron.layouts import ARGUMENTS, PARALLEL_STATE, TRANSFORMER_CONFIG
from searches.frameworks.megatron.settings import (
    SINGLE_QUEUE,
    enforced_in,
    flag,
    flag_number,
    flag_rule,
    flag_value,
    flags_rule,
)
from searches.frameworks.rule import holding

DDP_CONFIG = "megatron/core/distributed/distributed_data_parallel_config.py"
OPTIMIZER_CONFIG = "megatron/core/optimizer/optimizer_config.py, OptimizerConfig"
FSDP_ADAPTER = "megatron/core/distributed/fsdp/mcore_fsdp_adapter.py"
RECOMPUTE_MODULES = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
    "gdn_norm_out",
)
OFFLOADED = (*OFFLOAD_MODULES, "fused_group_mlp")
"""Modules that `--offload-modules` takes."""
NO_GROUPED_GEMM = ("pascal", "volta", "turing")
"""Generations below compute capability 8."""


# Experts and sequence parallelism --------------------------------------------------------------


def _overlapped_experts(c: Case) -> list[str]:
    if not flag(c, "overlap_moe_expert_parallel_comm"):
        return []
    return holding(
        {
            "--overlap-moe-expert-parallel-comm needs ep above 1": c.ep == 1,
            "with a pipeline it needs interleaving": c.pp > 1 and c.vpp == 1,
            "it needs the alltoall or flex dispatcher": flag(c, "moe_token_dispatcher_type")
            not in ("alltoall", "flex"),
            "it excludes full recompute": flag(c, "recompute_granularity") == "full",
            "it excludes --recompute-method": flag(c, "recompute_method") is not None,
            "it excludes --recompute-num-layers": flag(c, "recompute_num_layers") is not None,
            "it excludes recompute of moe": "moe" in (flag(c, "recompute_modules") or ()),
            "it needs bf16 or fp16": not (flag(c, "bf16") or flag(c, "fp16")),
            "it excludes --moe-shared-expert-overlap": flag(c, "moe_shared_expert_overlap"),
            "it allows one layer of multi-token prediction": (flag(c, "mtp_num_layers") or 0) > 1,
            "with Megatron-FSDP it excludes interleaving": flag(c, "use_megatron_fsdp")
            and c.vpp > 1,
            "with Megatron-FSDP it excludes graphs of modules": flag(c, "use_megatron_fsdp")
            and flag(c, "cuda_graph_impl") in ("local", "transformer_engine"),
            "it excludes mlp and moe in CUDA graphs": flag(c, "cuda_graph_impl")
            == "transformer_engine"
            and bool({"mlp", "moe"} & set(flag(c, "cuda_graph_modules") or ())),
        }
    )


def _dispatcher(c: Case) -> list[str]:
    kind, backend = flag(c, "moe_token_dispatcher_type"), flag(c, "moe_flex_dispatcher_backend")
    return holding(
        {
            "--moe-enable-deepep needs --moe-token-dispatcher-type flex": flag(
                c, "moe_enable_deepep"
            )
            and kind != "flex",
            "--moe-enable-deepep excludes the hybridep backend": flag(c, "moe_enable_deepep")
            and backend == "hybridep",
            "the ncclep backend needs --moe-token-dispatcher-type flex": backend == "ncclep"
            and kind != "flex",
            "the deepep backend cannot pad experts to capacity": kind == "flex"
            and flag(c, "moe_pad_expert_input_to_capacity")
            and (backend == "deepep" or flag(c, "moe_enable_deepep")),
        }
    )


def _load_balancing(c: Case) -> list[str]:
    named = flag(c, "moe_router_load_balancing_type")
    return list(named) if isinstance(named, list | tuple) else [named]


def _capacity(c: Case) -> list[str]:
    factor = flag(c, "moe_expert_capacity_factor")
    allowed = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
    return holding(
        {
            "--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor": flag(
                c, "moe_pad_expert_input_to_capacity"
            )
            and (factor is None or factor < 0),
            "--moe-expert-capacity-factor needs balancing by an auxiliary loss or none": factor
            is not None
            and any(x not in allowed for x in _load_balancing(c)),
        }
    )


def _groups_of_experts(c: Case) -> list[str]:
    top, groups = flag(c, "moe_router_group_topk"), flag(c, "moe_router_num_groups")
    if not top:
        return []
    if not groups:
        return ["--moe-router-group-topk needs --moe-router-num-groups"]
    return holding(
        {
            f"{flag(c, 'num_experts')} experts do not divide into {groups} groups": flag_number(
                c, "num_experts"
            )
            % groups,
            f"--moe-router-group-topk {top} exceeds {groups} groups": top > groups,
        }
    )


_EXPERTS = (
    flag_rule(
        "MLM320",
        "overlapped tensor-parallel messages without sequence parallelism",
        lambda c: flag(c, "tp_comm_overlap") and not (flag(c, "sequence_parallel") and c.tp > 1),
        "--tp-comm-overlap needs --sequence-parallel and tp above 1",
        "--sequence-parallel",
    ),
    flag_rule(
        "MLM321",
        "one expert a token after the softmax over it alone",
        lambda c: (
            bool(flag(c, "num_experts"))
            and flag(c, "moe_router_topk") == 1
            and flag(c, "moe_router_score_function") == "softmax"
            and not flag(c, "moe_router_pre_softmax")
            and _load_balancing(c) != ["sinkhorn"]
        ),
        "--moe-router-topk 1: a softmax over one score has no gradient",
        "--moe-router-pre-softmax",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM322",
        "group-limited routing that does not divide",
        _groups_of_experts,
        "a number of groups that divides the experts",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flag_rule(
        "MLM323",
        "expert bias with softmax scores",
        lambda c: (
            flag(c, "moe_router_enable_expert_bias")
            and flag(c, "moe_router_score_function") not in ("sigmoid", "sqrtsoftplus")
        ),
        "--moe-router-enable-expert-bias needs sigmoid or sqrtsoftplus scores",
        "--moe-router-score-function sigmoid",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM324",
        "token dispatcher and backend that do not go together",
        _dispatcher,
        "--moe-token-dispatcher-type alltoall",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM325",
        "capacity of the experts without what it needs",
        _capacity,
        "leave the capacity out",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM326",
        "shared experts that cannot be had so",
        lambda c: (
            holding(
                {
                    "--moe-shared-expert-overlap needs the alltoall or flex dispatcher": flag(
                        c, "moe_shared_expert_overlap"
                    )
                    and flag(c, "moe_token_dispatcher_type") not in ("alltoall", "flex"),
                    "--moe-shared-expert-intermediate-size must be above 0": flag(
                        c, "moe_shared_expert_intermediate_size"
                    )
                    <= 0,
                }
            )
            if flag(c, "moe_shared_expert_intermediate_size") is not None
            else []
        ),
        "--moe-token-dispatcher-type alltoall",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM327",
        "overlapped exchange of the experts beside what excludes it",
        _overlapped_experts,
        "leave --overlap-moe-expert-parallel-comm out",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM328",
        "delayed weight gradients without what they need",
        lambda c: (
            holding(
                {
                    "--delay-wgrad-compute needs --overlap-moe-expert-parallel-comm": not flag(
                        c, "overlap_moe_expert_parallel_comm"
                    ),
                    "it needs --transformer-impl transformer_engine": flag(c, "transformer_impl")
                    != "transformer_engine",
                }
            )
            if flag(c, "delay_wgrad_compute")
            else []
        ),
        "leave --delay-wgrad-compute out",
        enforced_in(f"{TRANSFORMER_CONFIG}; {ARGUMENTS}"),
    ),
    flag_rule(
        "MLM329",
        "grouped GEMMs on an old accelerator",
        lambda c: flag(c, "moe_grouped_gemm") and c.generation.startswith(NO_GROUPED_GEMM),
        lambda c: f"--moe-grouped-gemm needs compute capability 8, {c.generation} has less",
        "leave --moe-grouped-gemm out",
    ),
    flag_rule(
        "MLM330",
        "width of experts without experts",
        lambda c: flag(c, "moe_ffn_hidden_size") is not None and not flag(c, "num_experts"),
        "--moe-ffn-hidden-size without --num-experts",
        "leave it out, or --num-experts",
        enforced_in(TRANSFORMER_CONFIG, versions=">=0.18"),
    ),
    flag_rule(
        "MLM331",
        "pattern of expert layers that is not one a layer",
        lambda c: (
            bool(flag(c, "num_experts"))
            and isinstance(flag(c, "moe_layer_freq"), list | tuple)
            and len(flag(c, "moe_layer_freq")) != flag_number(c, "num_layers")
        ),
        lambda c: (
            f"--moe-layer-freq is a pattern of {len(flag(c, 'moe_layer_freq'))} layers, the"
            f" model has {flag(c, 'num_layers')}"
        ),
        "a pattern of all of them",
        enforced_in(
            "megatron/core/models/gpt/gpt_layer_specs.py, get_gpt_decoder_layer_specs", "start"
        ),
    ),
)


# Data parallelism and optimizer ----------------------------------------------------------------


def _torch_fsdp(c: Case) -> list[str]:
    if not flag(c, "use_torch_fsdp2"):
        return []
    return holding(
        {
            "--use-torch-fsdp2 excludes a pipeline": c.pp > 1,
            "it excludes expert parallelism": c.ep > 1,
            "it excludes --use-distributed-optimizer": flag(c, "use_distributed_optimizer"),
            "it needs --no-gradient-accumulation-fusion": flag(c, "gradient_accumulation_fusion"),
            "it needs --ckpt-format torch_dist or torch_dcp": flag(c, "ckpt_format")
            not in ("torch_dist", "torch_dcp"),
            "it needs --untie-embeddings-and-output-weights": not flag(
                c, "untie_embeddings_and_output_weights"
            ),
            "it excludes fp16": flag(c, "fp16"),
            f"it excludes {SINGLE_QUEUE}=1": c.env.get(SINGLE_QUEUE) == "1",
        }
    )


def _megatron_fsdp(c: Case) -> list[str]:
    if not flag(c, "use_megatron_fsdp"):
        return []
    return holding(
        {
            "--use-megatron-fsdp needs --ckpt-format fsdp_dtensor": flag(c, "ckpt_format")
            != "fsdp_dtensor",
            "it needs the adam or sgd optimizer": flag(c, "optimizer") not in ("adam", "sgd"),
            f"it excludes {SINGLE_QUEUE}=1": c.env.get(SINGLE_QUEUE) == "1",
            "--init-model-with-meta-device needs sharded states": flag(
                c, "init_model_with_meta_device"
            )
            and flag(c, "data_parallel_sharding_strategy") == "no_shard",
        }
    )


def _low_precision_states(c: Case) -> list[str]:
    names = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    return [f"{flag_value(n)} {flag(c, n)}" for n in names if flag(c, n) != "fp32"]


def _instances(c: Case) -> int:
    return int(flag(c, "num_distributed_optimizer_instances"))


def _expert_replicas(c: Case) -> int:
    """Return the data-parallel size of the experts' grid, tp where it has no degree of its own."""
    etp = c.tp if flag(c, "expert_tensor_parallel_size") is None else c.etp
    return int(c.n_devices // (etp * c.ep * c.pp))


_DATA = (
    flags_rule(
        "MLM410",
        "gathered parameters overlapped without what that needs",
        lambda c: (
            holding(
                {
                    "--overlap-param-gather needs --use-distributed-optimizer": not (
                        flag(c, "use_distributed_optimizer")
                        or flag(c, "use_megatron_fsdp")
                        or flag(c, "optimizer") == "dist_muon"
                    ),
                    "--overlap-param-gather needs --overlap-grad-reduce": not flag(
                        c, "overlap_grad_reduce"
                    ),
                }
            )
            if flag(c, "overlap_param_gather")
            else []
        ),
        "--use-distributed-optimizer --overlap-grad-reduce",
    ),
    flags_rule(
        "MLM411",
        "gathers in the optimizer step without what they need",
        lambda c: (
            holding(
                {
                    "--overlap-param-gather-with-optimizer-step needs "
                    "--use-distributed-optimizer": not flag(c, "use_distributed_optimizer"),
                    "it needs --overlap-param-gather": not flag(c, "overlap_param_gather"),
                    "it needs interleaving": c.vpp == 1,
                    "it excludes distributed checkpoints": flag(c, "ckpt_format") != "torch",
                }
            )
            if flag(c, "overlap_param_gather_with_optimizer_step")
            else []
        ),
        "leave it out",
    ),
    flags_rule(
        "MLM412",
        "PyTorch FSDP2 beside what excludes it",
        _torch_fsdp,
        "--use-megatron-fsdp, or --use-distributed-optimizer",
    ),
    flags_rule(
        "MLM413",
        "Megatron-FSDP without what it needs",
        _megatron_fsdp,
        f"--ckpt-format fsdp_dtensor, and {SINGLE_QUEUE} unset",
    ),
    flag_rule(
        "MLM414",
        "distributed optimizer with the second Megatron-FSDP",
        lambda c: (
            flag(c, "use_megatron_fsdp")
            and flag(c, "megatron_fsdp_version") == 2
            and flag(c, "use_distributed_optimizer")
        ),
        "--megatron-fsdp-version 2 excludes --use-distributed-optimizer",
        "leave --use-distributed-optimizer out",
        enforced_in(ARGUMENTS, versions=">=0.20.dev0"),
    ),
    flag_rule(
        "MLM415",
        "checkpoints of Megatron-FSDP without it",
        lambda c: flag(c, "ckpt_format") == "fsdp_dtensor" and not flag(c, "use_megatron_fsdp"),
        "--ckpt-format fsdp_dtensor needs --use-megatron-fsdp",
        "--ckpt-format torch_dist",
    ),
    flags_rule(
        "MLM416",
        "torch_dcp checkpoints without what they need",
        lambda c: (
            holding(
                {
                    "--ckpt-format torch_dcp needs --use-torch-fsdp2": not flag(
                        c, "use_torch_fsdp2"
                    ),
                    "it excludes tensor and pipeline parallelism": c.tp * c.pp > 1,
                }
            )
            if flag(c, "ckpt_format") == "torch_dcp"
            else []
        ),
        "--ckpt-format torch_dist",
    ),
    flag_rule(
        "MLM417",
        "optimizer states in low precision",
        lambda c: bool(_low_precision_states(c)) and not flag(c, "use_precision_aware_optimizer"),
        lambda c: f"{', '.join(_low_precision_states(c))} without --use-precision-aware-optimizer",
        "--use-precision-aware-optimizer",
        enforced_in(OPTIMIZER_CONFIG),
    ),
    flags_rule(
        "MLM418",
        "precision-aware optimizer without what it needs",
        lambda c: (
            holding(
                {
                    "--use-precision-aware-optimizer needs adam": flag(c, "optimizer") != "adam",
                    "it needs --use-distributed-optimizer": not (
                        flag(c, "use_distributed_optimizer") or flag(c, "use_megatron_fsdp")
                    ),
                }
            )
            if flag(c, "use_precision_aware_optimizer")
            else []
        ),
        "--use-distributed-optimizer",
        enforced_in(OPTIMIZER_CONFIG),
    ),
    flags_rule(
        "MLM419",
        "offloaded optimizer without what it needs",
        lambda c: (
            holding(
                {
                    "--optimizer-cpu-offload needs --use-precision-aware-optimizer": not flag(
                        c, "use_precision_aware_optimizer"
                    ),
                    "with --fp8-param-gather it needs --fp8-recipe delayed": flag(
                        c, "fp8_param_gather"
                    )
                    and flag(c, "fp8_recipe") != "delayed",
                }
            )
            if flag(c, "optimizer_cpu_offload")
            else []
        ),
        "--use-precision-aware-optimizer",
    ),
    flag_rule(
        "MLM420",
        "no Gloo groups with legacy checkpoints",
        lambda c: (
            not flag(c, "use_gloo_process_groups")
            and flag(c, "use_distributed_optimizer")
            and flag(c, "ckpt_format") == "torch"
        ),
        "--disable-gloo-process-groups with a distributed optimizer needs distributed checkpoints",
        "--ckpt-format torch_dist",
    ),
    flags_rule(
        "MLM421",
        "number and size of buckets",
        lambda c: (
            holding(
                {
                    "--ddp-num-buckets excludes --ddp-bucket-size": flag(c, "ddp_bucket_size")
                    is not None,
                    "--ddp-num-buckets must be above 0": flag(c, "ddp_num_buckets") <= 0,
                }
            )
            if flag(c, "ddp_num_buckets") is not None
            else []
        ),
        "one of the two",
        enforced_in(DDP_CONFIG),
    ),
    flags_rule(
        "MLM422",
        "optimizer instances that do not divide the replicas",
        lambda c: (
            holding(
                {
                    f"{c.dp * c.cp} replicas do not divide by {_instances(c)} optimizer "
                    f"instances": c.dp * c.cp % _instances(c) > 0,
                    f"{_expert_replicas(c)} replicas of the experts do not divide by "
                    f"{_instances(c)}"
                    " optimizer instances": _expert_replicas(c) % _instances(c) > 0,
                }
            )
            if _instances(c) > 1
            else []
        ),
        "a number that divides both",
        enforced_in(PARALLEL_STATE, "start"),
    ),
    flag_rule(
        "MLM423",
        "states sharded over the outer groups without sharded weights",
        lambda c: (
            flag(c, "use_megatron_fsdp")
            and flag(c, "outer_dp_sharding_strategy") == "optim"
            and flag(c, "data_parallel_sharding_strategy") != "optim_grads_params"
        ),
        "--outer-dp-sharding-strategy optim needs optim_grads_params inside",
        "--data-parallel-sharding-strategy optim_grads_params",
        enforced_in(FSDP_ADAPTER, "start"),
    ),
    flags_rule(
        "MLM424",
        "registered FSDP buffers without what they need",
        lambda c: (
            holding(
                {
                    "--fsdp-manual-registration needs --use-megatron-fsdp": not flag(
                        c, "use_megatron_fsdp"
                    ),
                    "it needs --use-nccl-ub": not flag(c, "nccl_ub"),
                }
            )
            if flag(c, "fsdp_manual_registration")
            else []
        ),
        "--use-nccl-ub",
    ),
    flags_rule(
        "MLM425",
        "emerging optimizer beside FSDP",
        lambda c: (
            holding(
                {
                    "it excludes FSDP": flag(c, "use_torch_fsdp2") or flag(c, "use_megatron_fsdp"),
                    "it needs --ckpt-format torch or torch_dist": flag(c, "ckpt_format")
                    not in ("torch", "torch_dist"),
                }
            )
            if flag(c, "optimizer") not in ("adam", "sgd")
            else []
        ),
        "--optimizer adam",
        enforced_in(ARGUMENTS, versions=">=0.18"),
    ),
)


# Recompute and precision -----------------------------------------------------------------------


def _granularity(c: Case) -> Any:
    return "selective" if flag(c, "recompute_activations") else flag(c, "recompute_granularity")


def _module_faults(c: Case) -> list[str]:
    if _granularity(c) != "selective":
        return []
    modules = flag(c, "recompute_modules") or ()
    unknown = sorted(set(modules) - set(RECOMPUTE_MODULES))
    if unknown:
        return [f"--recompute-modules does not know {', '.join(unknown)}"]
    delayed = flag(c, "fp8") and flag(c, "fp8_recipe") == "delayed"
    return holding(
        {
            "recompute of moe_act needs --moe-grouped-gemm": "moe_act" in modules
            and not flag(c, "moe_grouped_gemm"),
            "recompute of mla_up_proj needs --multi-latent-attention": "mla_up_proj" in modules
            and not flag(c, "multi_latent_attention"),
            "recompute of shared_experts excludes --moe-shared-expert-overlap": "shared_experts"
            in modules
            and flag(c, "moe_shared_expert_overlap")
            and flag(c, "moe_shared_expert_intermediate_size") is not None,
            "recompute of gdn_norm_out needs --experimental-attention-variant gated_delta_net": (
                "gdn_norm_out" in modules
                and flag(c, "experimental_attention_variant") != "gated_delta_net"
            ),
            "recompute of moe_act and layernorm excludes --fp8-recipe delayed": delayed
            and ("moe_act" in modules or "layernorm" in modules),
        }
    )


def _offload_faults(c: Case) -> list[str]:
    if not flag(c, "fine_grained_activation_offloading"):
        return []
    modules = set(flag(c, "offload_modules") or ())
    unknown = sorted(modules - set(OFFLOADED))
    if unknown:
        return [f"--offload-modules does not know {', '.join(unknown)}"]
    inside = sorted(modules & {"expert_fc1", "moe_act", "fused_group_mlp"})
    again = flag(c, "recompute_modules") or ()
    fraction = flag(c, "activation_offload_fraction")
    fused = "fused_group_mlp" in modules
    return holding(
        {
            "--fine-grained-activation-offloading needs --offload-modules": not modules,
            "offload of attn_proj needs that of core_attn": "attn_proj" in modules
            and "core_attn" not in modules,
            "it excludes --cpu-offloading-num-layers": flag(c, "cpu_offloading_num_layers") > 0,
            "it needs --transformer-impl transformer_engine": flag(c, "transformer_impl")
            != "transformer_engine",
            f"recompute of moe excludes offload of {' '.join(inside)}": bool(inside)
            and _granularity(c) == "selective"
            and "moe" in again,
            f"--moe-paged-stash excludes offload of {' '.join(inside)}": bool(inside)
            and flag(c, "moe_paged_stash"),
            "fused_group_mlp needs --use-transformer-engine-op-fuser": fused
            and not flag(c, "use_transformer_engine_op_fuser"),
            "fused_group_mlp excludes expert_fc1 and moe_act": fused and len(inside) > 1,
            "--activation-offload-fraction is between 0 and 1": fraction is not None
            and not 0 <= float(fraction) <= 1,
        }
    )


def _kept_in_bf16(c: Case) -> list[str]:
    if not (flag(c, "fp8") and flag(c, "first_last_layers_bf16")):
        return []
    maximum = flag_number(c, "num_layers") // c.pp
    ends = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
    over = [
        f"{flag_value(n)} exceeds {maximum} layers a stage" for n in ends if flag(c, n) > maximum
    ]
    delayed = flag(c, "fp8_recipe") == "delayed"
    return ["--first-last-layers-bf16 excludes --fp8-recipe delayed"] * delayed + over


_RECOMPUTE = (
    flags_rule(
        "MLM510",
        "full recompute without method or number of layers",
        lambda c: (
            holding(
                {
                    "--recompute-granularity full needs --recompute-method": flag(
                        c, "recompute_method"
                    )
                    is None,
                    "--recompute-granularity full needs --recompute-num-layers": flag(
                        c, "recompute_num_layers"
                    )
                    is None,
                }
            )
            if _granularity(c) == "full"
            else []
        ),
        "--recompute-method block --recompute-num-layers N",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM511",
        "selective recompute with a method or a number of layers",
        lambda c: (
            holding(
                {
                    "selective recompute excludes --recompute-method": flag(c, "recompute_method")
                    is not None,
                    "selective recompute excludes --recompute-num-layers": flag(
                        c, "recompute_num_layers"
                    )
                    is not None,
                }
            )
            if _granularity(c) == "selective"
            else []
        ),
        "--recompute-modules",
        enforced_in(f"{ARGUMENTS}; {TRANSFORMER_CONFIG}"),
    ),
    flags_rule(
        "MLM512",
        "recomputed modules that cannot be",
        _module_faults,
        "--recompute-modules core_attn",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM524",
        "modules on the host that cannot be",
        _offload_faults,
        "--offload-modules core_attn attn_proj",
        enforced_in(f"{TRANSFORMER_CONFIG}; {ARGUMENTS}"),
    ),
    flags_rule(
        "MLM513",
        "saved activations distributed without what that needs",
        lambda c: (
            holding(
                {
                    "--distribute-saved-activations needs tp above 1": c.tp == 1,
                    "it needs --recompute-granularity full": _granularity(c) != "full",
                    "it needs --recompute-method": flag(c, "recompute_method") is None,
                    "it excludes sequence parallelism": flag(c, "sequence_parallel") and c.tp > 1,
                }
            )
            if flag(c, "distribute_saved_activations")
            else []
        ),
        "leave it out",
        enforced_in(f"{ARGUMENTS}; {TRANSFORMER_CONFIG}"),
    ),
    flag_rule(
        "MLM514",
        "fp8 beside fp4",
        lambda c: bool(flag(c, "fp8")) and bool(flag(c, "fp4")),
        "--fp8-format and --fp4-format exclude each other",
        "one of the two",
    ),
    flags_rule(
        "MLM515",
        "parameters gathered in fp8 without what that needs",
        lambda c: (
            holding(
                {
                    "--fp8-param-gather needs --fp8-format": not flag(c, "fp8"),
                    "it needs a distributed optimizer or FSDP": not (
                        flag(c, "use_distributed_optimizer")
                        or flag(c, "use_torch_fsdp2")
                        or flag(c, "use_megatron_fsdp")
                    ),
                }
            )
            if flag(c, "fp8_param_gather")
            else []
        ),
        "--use-distributed-optimizer",
        enforced_in(f"{ARGUMENTS}; {TRANSFORMER_CONFIG}"),
    ),
    flags_rule(
        "MLM516",
        "first and last layers in bf16 that cannot be",
        _kept_in_bf16,
        "--fp8-recipe tensorwise",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flag_rule(
        "MLM517",
        "bf16 beside fp16",
        lambda c: flag(c, "bf16") and flag(c, "fp16"),
        "--bf16 and --fp16 exclude each other",
        "--bf16",
    ),
    flag_rule(
        "MLM518",
        "fused cross-entropy of Transformer Engine",
        lambda c: (
            flag(c, "cross_entropy_loss_fusion") and flag(c, "cross_entropy_fusion_impl") == "te"
        ),
        "--cross-entropy-fusion-impl te is refused as unstable",
        "--cross-entropy-fusion-impl native",
        enforced_in(ARGUMENTS, versions=">=0.19"),
    ),
    flag_rule(
        "MLM519",
        "CUDA graphs with full recompute",
        lambda c: (
            flag(c, "cuda_graph_impl") in ("local", "transformer_engine")
            and _granularity(c) == "full"
        ),
        lambda c: f"--cuda-graph-impl {flag(c, 'cuda_graph_impl')} excludes full recompute",
        "--cuda-graph-impl full_iteration",
        enforced_in(TRANSFORMER_CONFIG, versions=">=0.18"),
    ),
    flag_rule(
        "MLM520",
        "fp32 gradients asked for in another type",
        lambda c: (
            flag(c, "bf16")
            and flag(c, "accumulate_allreduce_grads_in_fp32")
            and flag(c, "main_grads_dtype") != "fp32"
        ),
        "--accumulate-allreduce-grads-in-fp32 needs --main-grads-dtype fp32",
        "--main-grads-dtype fp32",
    ),
    flag_rule(
        "MLM521",
        "cross-entropy in fp16 without fp16",
        lambda c: flag(c, "fp16_lm_cross_entropy") and not flag(c, "fp16"),
        "--fp16-lm-cross-entropy needs --fp16",
        "leave it out",
    ),
    flag_rule(
        "MLM522",
        "fp32 residuals without mixed precision",
        lambda c: flag(c, "fp32_residual_connection") and not (flag(c, "bf16") or flag(c, "fp16")),
        "--fp32-residual-connection needs --bf16 or --fp16",
        "--bf16",
    ),
    flag_rule(
        "MLM523",
        "gradient buffer for mxfp8 parameters that are not gathered in fp8",
        lambda c: (
            flag(c, "reuse_grad_buf_for_mxfp8_param_ag")
            and not flag(c, "fp8_param_gather")
            and not flag(c, "use_megatron_fsdp")
        ),
        "--reuse-grad-buf-for-mxfp8-param-ag needs --fp8-param-gather",
        "--fp8-param-gather",
        enforced_in(DDP_CONFIG),
    ),
)

RULES = _EXPERTS + _DATA + _RECOMPUTE
"""Rules over experts, data parallelism, recompute and precision of an existing run."""
