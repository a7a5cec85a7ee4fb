"""Scripts of MindSpeed-LLM to runs: its options under Megatron-LM's names, then as those are read.

What its own options do to a model or a layout is said in Megatron-LM's words (`as_megatron`); what
they save of memory, or hide of traffic, and is not modelled, is named.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.megatron.arguments import megatron_run
from planner.frameworks.megatron.emitter import stage_layout
from planner.frameworks.megatron.flags import Parsed, flag_table, set_flags
from planner.frameworks.megatron.forks import forks, line_in, stray_notes, without_stray
from planner.frameworks.mindspeed.options import default_option, option_table, parse_options
from planner.frameworks.runs.existing_run import Doubt, ExistingRun
from planner.frameworks.runs.format import LaunchedRun
from planner.frameworks.runs.query import with_layers
from planner.frameworks.runs.written_facts import written_facts
from searches.frameworks.mindspeed.layouts import CORE, EXCHANGES

FORK = "MindSpeed-LLM"
"""Its name among the forks of Megatron-LM, of releases that the table does not know too."""
RENAMED: Mapping[str, str] = {
    "norm_epsilon": "layernorm_epsilon",
    "deprecated_moe_intermediate_size": "moe_ffn_hidden_size",
    "deprecated_n_group": "moe_router_num_groups",
    "deprecated_topk_group": "moe_router_group_topk",
    "deprecated_routed_scaling_factor": "moe_router_topk_scaling_factor",
    "deprecated_qk_rope_head_dim": "qk_pos_emb_head_dim",
    "deprecated_qk_nope_head_dim": "qk_head_dim",
    "deprecated_multi_head_latent_attention": "multi_latent_attention",
    "rope_theta": "rotary_base",
    "shared_expert_gate": "moe_shared_expert_gate",
    "fix_router": "moe_router_force_load_balancing",
}
"""Names of Megatron-LM for options of its own (`arguments/deprecated_args.py` and others)."""
FROM_EXCHANGES = {value: name for name, value in EXCHANGES.items()}
CP_COMM_TYPE = {"p2p": "p2p", "a2a": "a2a", "all-gather": "all_gather"}
BALANCING = ("aux_loss", "seq_aux_loss", "sinkhorn", "none")
"""Kinds of balancing that Megatron-LM has under the same name."""
NOT_MODELLED: Mapping[str, str] = {
    "full_attention_interval": "linear attention of Qwen3-Next",
    "enable_dsa_indexer": "an indexer of sparse attention",
    "enable_mhc": "several residual streams",
    "compress_ratios": "compressed attention",
    "kv_compress": "compressed attention",
    "share_kvstates": "keys and values that layers share",
    "num_zero_experts": "experts that do nothing",
    "hybrid_attention_ratio": "hybrid models",
    "layerwise_disaggregated_training": "training that is spread over sites",
}
"""Options that make another model, or another layout, than any that is priced."""
SAVES_MEMORY = (
    *("swap_attention", "swap_optimizer", "reuse_fp32_param", "recompute_activation_function"),
    *("recompute_norm", "recompute_mla_up_proj", "mla_zero_memory", "moe_zero_memory"),
    *("o2_optimizer", "o2_gradient", "quant_states", "quant_grads", "virtual_optimizer"),
    *("smart_swap", "swap_layer_input", "mtp_mem_efficient_logits", "recompute_in_advance"),
    *("recompute_in_bubble", "mla_swap_core_attn_out"),
)
"""Options that keep memory off the device and are not modelled."""
NOT_PRICED: Mapping[str, str] = {
    "moe_fb_overlap": "priced with the exchange of tokens in the open",
    "moe_alltoall_overlap_comm": "priced with the exchange of tokens in the open",
    "moe_allgather_overlap_comm": "priced with the exchange of tokens in the open",
    "moe_alltoall_mc2": "priced with the exchange of tokens in the open",
    "use_ascend_mc2": "products in pieces beside their traffic are not modelled",
    "use_ascend_coc": "products in pieces beside their traffic are not modelled",
    "sliding_window": "priced as attention to all tokens",
    "interleave_sliding_window": "priced as attention to all tokens",
    "lora_r": "adapters are not modelled: priced as training all weights",
    "tp_2d": "tensor parallelism is priced in one dimension",
    "reset_attention_mask": "priced as attention to the whole sequence",
    "use_torch_fsdp2": "priced as ZeRO-3",
}
"""Options that change a step and are priced otherwise, and how."""
OF_FILES = ("model_type_hf", "prompt_type", "tokenizer_type", "handler_name")
"""Options of checkpoints and data: each release has more values, and no figure depends on them."""


@dataclass(frozen=True, slots=True)
class AsMegatron:
    """Options of MindSpeed-LLM as settings of Megatron-LM."""

    parsed: Parsed
    notes: tuple[str, ...]
    saves_memory: str
    """Options that save memory and are not modelled, as written."""


def read_mindspeed(script: LaunchedRun) -> ExistingRun:
    """Return the run of a script; `SpecError` for models that are not priced."""
    text, launch, query = script.file.text, script.launch, script.query
    typed = parse_options(launch.argv)
    own = set_flags(without_stray(typed), query.sets, option_table()[1:])
    _refuse_unmodelled(own, launch.script, script.file.name)
    meant = as_megatron(own)
    facts = written_facts(text)
    run = megatron_run(
        meant.parsed,
        launch,
        script.file.name,
        replace(with_layers(query, facts), version=CORE),
        "MindSpeed-LLM launch script" if launch.script else "MindSpeed-LLM flags",
        str(facts.get("model", "")),
    )
    known = forks().get(FORK, frozenset()) | flag_table()[1].keys()
    line_of = line_in(text)
    release = option_table()[0]["release"]
    doubts = [
        Doubt(
            flag,
            f"MindSpeed-LLM {release} has no such option; another release has",
            "judged and priced as without it",
            line_of(flag),
        )
        for flag in own.unknown
        if flag in known
    ]
    return replace(
        run,
        framework="mindspeed",
        settings=own.settings,
        written=own.written,
        switches=tuple(one for one in run.switches if not _is_of_megatron(one.change)),
        notes=tuple(dict.fromkeys((*run.notes, *stray_notes(typed), *meant.notes))),
        unknown=tuple(flag for flag in own.unknown if flag not in known),
        refused=(*own.faults, *(t for d, t in own.odd_words.items() if d not in OF_FILES)),
        doubts=(*run.doubts, *doubts),
        overestimated=meant.saves_memory,
    )


def _is_of_megatron(change: str) -> bool:
    """Tell whether a change is of no use here: its loss is not compiled."""
    return "cross-entropy" in change


def _refuse_unmodelled(own: Parsed, script: str, source: str) -> None:
    fix = "planner prices decoder-only models of the kinds of layers in docs/files.md"
    for dest, what in NOT_MODELLED.items():
        if own.settings.get(dest):
            message = f"{own.written.get(dest, dest)}: not modelled in this version, {what}"
            raise SpecError(InputProblem(message, fix, source))
    if "pretrain_mamba" in script:
        message = f"{script}: not modelled in this version, state-space layers of MindSpeed-LLM"
        raise SpecError(InputProblem(message, fix, source))


def as_megatron(own: Parsed) -> AsMegatron:
    """Return options under the names, and with the values, of Megatron-LM's parser."""
    settings, written = dict(own.settings), dict(own.written)
    notes: list[str] = []
    for dest, name in RENAMED.items():
        value = settings.pop(dest, None)
        if value not in (None, False):
            settings.setdefault(name, value)
            written.setdefault(name, own.written.get(dest, dest))
    settings["attention_backend"] = "flash" if _is_flash(settings) else "unfused"
    written["attention_backend"] = own.written.get("use_flash_attn", "no --use-flash-attn")
    if settings.get("use_rotary_position_embeddings"):
        settings.setdefault("position_embedding_type", "rope")
        written.setdefault("position_embedding_type", "--use-rotary-position-embeddings")
    _exchange(settings, written, notes)
    _experts(settings, written)
    _stages(settings, written, notes)
    for dest, why in NOT_PRICED.items():
        if settings.get(dest):
            notes.append(f"{_shown(own, dest)}: {why}")
    if settings.get("schedules_method"):
        notes.append(f"{_shown(own, 'schedules_method')}: priced as 1F1B")
    saves = [_shown(own, dest) for dest in SAVES_MEMORY if settings.get(dest)]
    by_dest = flag_table()[2]
    kept = {dest: value for dest, value in settings.items() if dest in by_dest}
    return AsMegatron(
        replace(
            own,
            settings=kept,
            written={dest: text for dest, text in written.items() if dest in kept},
            unknown=(),
            faults=(),
            odd_words={},
            open_values={
                RENAMED.get(dest, dest): names for dest, names in own.open_values.items()
            },
        ),
        tuple(notes),
        " ".join(saves),
    )


def _shown(own: Parsed, dest: str) -> str:
    return own.written.get(dest, "--" + dest.replace("_", "-"))


def _is_flash(settings: Mapping[str, Any]) -> bool:
    """Tell whether attention is a fused kernel: so it is with context parallelism in any case."""
    cp = settings.get("context_parallel_size") or 1
    return bool(settings.get("use_flash_attn")) or (isinstance(cp, int) and cp > 1)


def _exchange(settings: dict[str, Any], written: dict[str, str], notes: list[str]) -> None:
    """Put the exchange of context-parallel ranks in Megatron-LM's words."""
    algorithm = settings.get("context_parallel_algo", default_option("context_parallel_algo"))
    name = FROM_EXCHANGES.get(str(algorithm), "p2p")
    settings["cp_comm_type"] = [CP_COMM_TYPE[name]]
    if "context_parallel_algo" in written:
        written["cp_comm_type"] = written["context_parallel_algo"]
    if (settings.get("context_parallel_size") or 1) != 1 and algorithm not in FROM_EXCHANGES:
        notes.append(f"--context-parallel-algo {algorithm}: priced as a ring over the group")


def _experts(settings: dict[str, Any], written: dict[str, str]) -> None:
    """Put dense layers, shared experts and the router in Megatron-LM's words."""
    if not settings.get("num_experts"):
        settings.pop("moe_layer_freq", None)
        return
    n_dense, layers = settings.get("first_k_dense_replace") or 0, settings.get("num_layers")
    every = settings.pop("moe_layer_freq", None) or 1
    if n_dense and isinstance(layers, int) and isinstance(every, int) and every > 0:
        settings["moe_layer_freq"] = [
            int(i >= n_dense and i % every == 0) for i in range(min(layers, 10_000))
        ]
        written["moe_layer_freq"] = written["first_k_dense_replace"]
    shared = settings.get("n_shared_experts")
    if shared and "moe_shared_expert_intermediate_size" not in settings:
        width = settings.get("moe_ffn_hidden_size") or settings.get("ffn_hidden_size") or 0
        settings["moe_shared_expert_intermediate_size"] = shared * width
        written["moe_shared_expert_intermediate_size"] = written["n_shared_experts"]
    kind = settings.get("moe_router_load_balancing_type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind is not None:
        kind = kind if kind in BALANCING else "aux_loss"
        settings["moe_router_load_balancing_type"] = "seq_aux_loss" if _is_seq(settings) else kind
    if settings.get("moe_token_dispatcher_type") == "alltoall_seq":
        settings["moe_token_dispatcher_type"] = "alltoall"


def _is_seq(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("seq_aux"))


def _stages(settings: dict[str, Any], written: dict[str, str], notes: list[str]) -> None:
    """Put layers by stage, and layers that do nothing, in Megatron-LM's words."""
    layers, pp = settings.get("num_layers"), settings.get("pipeline_model_parallel_size", 1)
    if not isinstance(layers, int) or not isinstance(pp, int) or pp < 1:
        return
    mtp = settings.get("mtp_num_layers") or 0
    empty = _numbers(settings.get("noop_layers"))
    counts = _numbers(settings.get("num_layer_list"))
    if empty:
        _without_empty(settings, written, empty)
        notes.append(f"{written['noop_layers']}: layers that do nothing are none")
    elif counts and pp > 1 and sum(counts) == layers:
        settings["pipeline_model_parallel_layout"] = stage_layout(counts, mtp)
        written["pipeline_model_parallel_layout"] = written["num_layer_list"]


def _without_empty(
    settings: dict[str, Any], written: dict[str, str], empty: tuple[int, ...]
) -> None:
    """Take layers that do nothing out of a model, and say which stages hold the others."""
    layers, pp = settings["num_layers"], settings.get("pipeline_model_parallel_size", 1)
    per_stage = settings.get("num_layers_per_virtual_pipeline_stage")
    per_stage = per_stage or layers // pp
    gone = {i for i in empty if i < layers}
    if isinstance(settings.get("moe_layer_freq"), list):
        pattern = enumerate(settings["moe_layer_freq"])
        settings["moe_layer_freq"] = [x for i, x in pattern if i not in gone]
    settings["num_layers"] = layers - len(gone)
    if pp == 1 or not per_stage or layers % per_stage or (layers // per_stage) % pp:
        return
    begins = range(0, layers, per_stage)
    counts = [sum(j not in gone for j in range(i, i + per_stage)) for i in begins]
    settings.pop("num_layers_per_virtual_pipeline_stage", None)
    settings["pipeline_model_parallel_layout"] = stage_layout(
        counts, settings.get("mtp_num_layers") or 0
    )
    written["pipeline_model_parallel_layout"] = written["noop_layers"]


def _numbers(text: Any) -> tuple[int, ...]:
    """Return numbers between commas; () for none, or for what is not."""
    parts = str(text).split(",") if text else []
    return tuple(int(x) for x in parts) if all(x.strip().isdecimal() for x in parts) else ()
