"""The configuration of Megatron-Bridge as settings of Megatron-LM's parser, and back.

Its model provider is a TransformerConfig of megatron-core, so most fields go by the names of the
parser's settings; those that do not stand in `NAMES`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from costmodels.plans import Layout
from planner.frameworks.bridge.recipe_tree import ConfigSection, Helper
from planner.frameworks.megatron.arguments import LAYOUT_DESTS, NOT_PRICED
from planner.frameworks.megatron.axis_flags import axis_dests
from planner.frameworks.megatron.flags import flag_table
from planner.frameworks.megatron.model import MODEL_DESTS
from planner.frameworks.megatron.settings import changed_flags
from planner.frameworks.optimizers import SHARED_OUT
from planner.frameworks.runs.existing_run import ExistingRun

ROOT = "cfg"
"""How recipes and `--set` call the configuration."""
NAMES = {
    "model.num_moe_experts": "num_experts",
    "model.virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "model.num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "model.num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "model.cuda_graph_scope": "cuda_graph_modules",
    "tokenizer.vocab_size": "vocab_size",
    "dataset.seq_length": "seq_length",
    "dataset.sequence_length": "seq_length",
    "mixed_precision.fp8_param": "fp8_param_gather",
    "dist.use_tp_pp_dp_mapping": "use_tp_pp_dp_mapping",
}
"""Setting of Megatron-LM's parser by field, where the field's own name is not it."""
SECTIONS = (
    "dataset",
    "tokenizer",
    "train",
    "optimizer",
    "dist",
    "ddp",
    "comm_overlap",
    "mixed_precision",
    "model",
)
"""Sections that are read; where two state one setting, the later counts."""
OF_THE_STEP = frozenset(
    (
        *LAYOUT_DESTS,
        *MODEL_DESTS,
        *NOT_PRICED,
        *axis_dests().values(),
        "bf16",
        "cross_entropy_loss_fusion",
        "gradient_accumulation_fusion",
        "moe_flex_dispatcher_backend",
        "moe_token_dispatcher_type",
        "num_experts",
        "optimizer_cpu_offload",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "sequence_parallel",
        "tp_comm_overlap",
        "use_distributed_optimizer",
        "use_megatron_fsdp",
    )
)
"""Settings that a price depends on."""
PRECISION_RECIPES: Mapping[str, Mapping[str, Any]] = {
    "bf16_mixed": {},
    "fp16_mixed": {"bf16": False, "fp16": True, "grad_reduce_in_fp32": False},
    "bf16_with_fp8_delayed_scaling_mixed": {
        "fp8": "hybrid",
        "fp8_recipe": "delayed",
        "fp8_param_gather": True,
    },
    "bf16_with_fp8_current_scaling_mixed": {
        "fp8": "hybrid",
        "fp8_recipe": "tensorwise",
        "first_last_layers_bf16": True,
        "fp8_param_gather": True,
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {"fp8": "hybrid", "fp8_recipe": "blockwise"},
    "bf16_with_mxfp8_mixed": {
        "fp8": "e4m3",
        "fp8_recipe": "mxfp8",
        "fp8_param_gather": True,
        "reuse_grad_buf_for_mxfp8_param_ag": True,
    },
    "bf16_with_nvfp4_mixed": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
"""Fields of the named mixed precisions beside bf16 and gradients in fp32
(megatron/bridge/training/mixed_precision.py)."""
COMPUTE_DTYPES = {
    "bf16": "bf16_mixed",
    "fp8_cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8_ds": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8_sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "fp8_mx": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""Named mixed precisions by the short names of performance recipes."""


def precision_section(name: str) -> ConfigSection:
    """Return a named mixed precision; one without fields where the name is not known."""
    plain = name.replace("-", "_")
    fields = PRECISION_RECIPES.get(plain)
    usual = {"bf16": True, "grad_reduce_in_fp32": True}
    return ConfigSection(plain, {} if fields is None else {**usual, **fields})


def _perf_precision(arguments: Any, _: Any) -> ConfigSection:
    section = precision_section(COMPUTE_DTYPES.get(str(arguments[0]), str(arguments[0])))
    section.fields |= {"grad_reduce_in_fp32": False}
    section.fields.pop("first_last_layers_bf16", None)
    return section


def _benchmark_common(arguments: Any, keywords: Mapping[str, Any]) -> None:
    config = arguments[0]
    if not isinstance(config, ConfigSection):
        return
    for name, field in (
        ("mixed_precision", "grad_reduce_in_fp32"),
        ("ddp", "grad_reduce_in_fp32"),
    ):
        section = config.fields.get(name)
        if not isinstance(section, ConfigSection):
            section = precision_section(section) if isinstance(section, str) else ConfigSection()
            config.fields[name] = section
        section.fields[field] = False
    model = config.fields.setdefault("model", ConfigSection())
    if isinstance(model, ConfigSection):
        model.fields["cross_entropy_fusion_impl"] = keywords.get("cross_entropy_impl", "te")


def _flex_dispatcher(arguments: Any, keywords: Mapping[str, Any]) -> None:
    model = arguments[0] if arguments else keywords.get("model_config")
    named = arguments[1] if len(arguments) > 1 else keywords.get("moe_flex_dispatcher_backend")
    if isinstance(model, ConfigSection) and isinstance(named, str):
        model.fields |= {
            "moe_token_dispatcher_type": "flex",
            "moe_flex_dispatcher_backend": named,
            "moe_shared_expert_overlap": False,
        }


def _from_hub(arguments: Any, _: Any) -> ConfigSection:
    return ConfigSection("AutoBridge", {"hf_config": arguments[0] if arguments else ""})


def _peft_of_scheme(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the adapters of a scheme by name; None for none.

    Source: Megatron-Bridge 0.6.2, recipes/utils/dataset_utils.py (default_peft_config).
    """
    scheme = arguments[0] if arguments else keywords.get("peft_scheme")
    if not isinstance(scheme, str):
        return scheme
    name = {"lora": "LoRA", "dora": "DoRA"}.get(scheme.lower())
    given = {key: value for key, value in keywords.items() if key != "peft_scheme"}
    return ConfigSection(name, given) if name else None


HELPERS: Mapping[str, Helper] = {
    **{
        name: (lambda arguments, keywords, name=name: precision_section(name))  # type: ignore[misc]
        for name in PRECISION_RECIPES
    },
    "get_mixed_precision_config": lambda arguments, _: precision_section(str(arguments[0])),
    "_perf_precision": _perf_precision,
    "_benchmark_common": _benchmark_common,
    "_enable_overlap_param_gather_with_optimizer_step": lambda arguments, _: None,
    "apply_flex_dispatcher_backend": _flex_dispatcher,
    "from_hf_pretrained": _from_hub,
    "default_peft_config": _peft_of_scheme,
}
"""Functions of Megatron-Bridge that recipes call, for where their source is not at hand."""


def setting_of(path: str) -> str:
    """Return the setting of Megatron-LM's parser of a field, "" where it has none."""
    name = NAMES.get(path, path.rsplit(".", 1)[-1])
    return name if name in flag_table()[2] else ""


def matters(path: str) -> bool:
    """Tell whether a price may depend on a field."""
    inside = path.removeprefix(f"{ROOT}.")
    section, _, name = inside.rpartition(".")
    return section in SECTIONS and (setting_of(inside) in OF_THE_STEP or name in _MADE)


_MADE = (
    "grad_reduce_in_fp32",
    "gated_linear_unit",
    "activation_func",
    "cpu_offloading",
    "share_embeddings_and_output_weights",
    "num_query_groups",
)


def megatron_settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that fields by path (`model.num_layers`) stand for, by dest."""
    settings: dict[str, Any] = {}
    for section in SECTIONS:
        for path, value in config.items():
            dest = setting_of(path)
            if path.startswith(f"{section}.") and dest and path.count(".") == 1:
                settings[dest] = value
    # Megatron-Bridge overlaps data-parallel traffic unless it is told otherwise.
    if "comm_overlap" in {path.split(".")[0] for path in config}:
        for name in ("overlap_grad_reduce", "overlap_param_gather"):
            stated_values = (config.get(f"{x}.{name}") for x in ("comm_overlap", "ddp"))
            settings[name] = next((x for x in stated_values if x is not None), True)
    settings |= _of_model(config)
    wide = [config.get(f"{section}.grad_reduce_in_fp32") for section in ("mixed_precision", "ddp")]
    settings["grad_reduce_in_bf16"] = next((x for x in wide if x is not None), True) is False
    if not config.get("model.cpu_offloading"):
        settings.pop("cpu_offloading_num_layers", None)
    if not settings.get("use_megatron_fsdp"):
        settings.pop("data_parallel_sharding_strategy", None)
    if settings.get("num_virtual_stages_per_pipeline_rank") == 1:
        del settings["num_virtual_stages_per_pipeline_rank"]
    if settings.get("optimizer") == SHARED_OUT and not settings.get("use_distributed_optimizer"):
        # Its data-parallel wrapper then sums gradients whole, whatever the release.
        settings["use_layer_wise_param_layout"] = False
    impl = settings.get("cuda_graph_impl")
    if impl in (None, "none", "full_iteration"):
        settings.pop("cuda_graph_modules", None)
    return {name: value for name, value in settings.items() if value is not None}


def _of_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the model whose fields mean them in another way."""
    out: dict[str, Any] = {}
    gated, activation = config.get("model.gated_linear_unit"), config.get("model.activation_func")
    if gated:
        name = str(activation or "silu")
        out["quick_geglu" if "quick" in name else "swiglu"] = True
    elif activation and "squared_relu" in str(activation):
        out["squared_relu"] = True
    tied = config.get("model.share_embeddings_and_output_weights")
    if tied is not None:
        out["untie_embeddings_and_output_weights"] = not tied
    if config.get("model.num_query_groups"):
        out["group_query_attention"] = True
    layout = config.get("model.pipeline_model_parallel_layout")
    if isinstance(layout, list | tuple):
        out["pipeline_model_parallel_layout"] = _layout_text(layout)
    if config.get("model.position_embedding_type") == "learned_absolute":
        out["add_position_embedding"] = True
    return out


def _layout_text(stages: list[Any] | tuple[Any, ...]) -> str:
    """Return a layout of lists of names, one a virtual stage, as a layout string.

    >>> _layout_text([["embedding", "decoder"], ["decoder", "mtp", "loss"]])
    'Et|tmL'
    """
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    return "|".join(
        "".join(letters.get(str(name), "") for name in stage) if isinstance(stage, list) else ""
        for stage in stages
    )


def path_of(dest: str) -> str:
    """Return the field of a setting of Megatron-LM's parser, with `cfg.`; "" where it has none."""
    for path, name in NAMES.items():
        if name == dest and path.startswith("model."):
            return f"{ROOT}.{path}"
    sections = {
        "train": ("micro_batch_size", "global_batch_size", "train_iters"),
        "ddp": (
            "use_distributed_optimizer",
            "overlap_grad_reduce",
            "overlap_param_gather",
            "use_megatron_fsdp",
            "data_parallel_sharding_strategy",
            "num_distributed_optimizer_instances",
        ),
        "comm_overlap": (
            "tp_comm_overlap",
            "overlap_moe_expert_parallel_comm",
            "delay_wgrad_compute",
        ),
        "optimizer": (
            "optimizer_cpu_offload",
            "use_precision_aware_optimizer",
            "optimizer_offload_fraction",
            "overlap_cpu_optimizer_d2h_h2d",
        ),
        "checkpoint": ("ckpt_format",),
        "dist": ("use_tp_pp_dp_mapping",),
    }
    section = next((name for name, dests in sections.items() if dest in dests), "model")
    alien = ("num_layers_per_virtual_pipeline_stage", "use_torch_fsdp2", "recompute_activations")
    return "" if dest in alien else f"{ROOT}.{section}.{dest}"


def changed_fields(
    run: ExistingRun, old: Layout, new: Layout, after: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the fields of what a recipe says otherwise than `new`; {} where some has no field."""
    by_name, by_dest = flag_table()[1:]
    out: dict[str, str | None] = {}
    for flag, value in changed_flags(run, old, new, after).items():
        dest = by_name[flag].dest
        path = path_of(dest)
        if not path:
            return {}
        out[path] = None if value is None else _python_text(by_dest[dest], flag, value)
    return out


def _python_text(flag: Any, name: str, value: str) -> str:
    """Return the value of a flag as a recipe writes it."""
    if flag.is_switch:
        return str(flag.kind == "on" or (flag.kind == "on-off" and not name.startswith("--no-")))
    if flag.nargs and flag.dest != "cp_comm_type":
        return "[" + ", ".join(f'"{part}"' for part in value.split()) + "]"
    return value if flag.kind in ("int", "float") else f'"{value}"'
