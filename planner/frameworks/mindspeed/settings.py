"""A plan as options of MindSpeed-LLM, and which options come to another plan.

They are those that Megatron-LM's files have, with what MindSpeed says in other words: layers of
stages, the exchange of context-parallel ranks, dense layers before those with experts, kernels.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.megatron.core_details import core_details
from planner.frameworks.megatron.emitter import flag_groups
from planner.frameworks.megatron.flags import flag_table
from planner.frameworks.mindspeed.options import option_table
from planner.frameworks.runs.existing_run import ExistingRun
from planner.specs.schema import NO_DETAILS, DetailsSpec
from searches.frameworks.mindspeed.layouts import EXCHANGES, dense_before

Option = tuple[str, ...]
"""An option with its values."""
Groups = list[tuple[str, list[str]]]

SPECS = {
    "latent": "mindspeed_llm.tasks.models.spec.deepseek_spec",
    "qk_norm": "mindspeed_llm.tasks.models.spec.qwen3_spec",
}
"""Where layers are defined that the plain ones are not (`pretrain_gpt.py`, model_provider)."""
LEFT_OUT = (
    "--attention-backend",
    "--cross-entropy-loss-fusion",
    "--cross-entropy-fusion-impl",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-layout",
    "--moe-layer-freq",
    "--cp-comm-type",
    "--moe-router-force-load-balancing",
    # Rotary positions are stretched by options of its own.
    *("--rope-type", "--rotary-scaling-factor", "--mscale", "--mscale-all-dim"),
    *("--use-rope-scaling", "--rope-scaling-factor"),
)
"""Flags of Megatron-LM's files that MindSpeed says in other words, or does without."""
STRETCHED = {
    "rope_scaling_factor": "--rope-scaling-factor",
    "rope_original_positions": "--rope-scaling-original-max-position-embeddings",
    "rope_beta_fast": "--beta-fast",
    "rope_beta_slow": "--beta-slow",
    "rope_mscale": "--rope-scaling-mscale",
    "rope_mscale_all_dim": "--rope-scaling-mscale-all-dim",
}
"""Options of YaRN by field of `model.details:`."""
WHOLE = ("rope_original_positions", "rope_beta_fast", "rope_beta_slow")


def options_of(words: Sequence[str]) -> Iterator[Option]:
    """Yield the options among some words, each with its values."""
    option: list[str] = []
    for word in words:
        if word.startswith("--") and option:
            yield tuple(option)
            option = []
        option.append(word)
    if option:
        yield tuple(option)


def option_groups(
    layout: Layout, shape: ModelShape, job: TrainingJob, details: DetailsSpec = NO_DETAILS
) -> tuple[Groups, tuple[str, ...]]:
    """Return the words after `pretrain_gpt.py` in named groups, and what no option says.

    The second are lines on details of the model.
    """
    of_core = core_details(details, layout, shape, job)
    own = {
        "model": _model_words(shape, details),
        "experts": _expert_words(layout, shape),
        "layout": _layout_words(layout),
    }
    of_details = {**of_core.model, **of_core.experts}
    groups: Groups = []
    lost: dict[str, None] = {}
    for name, words in flag_groups(layout, shape, job, details):
        kept: list[str] = []
        for option in options_of(words):
            if option[0] in LEFT_OUT:
                continue
            if option[0] == "--position-embedding-type" and option[1] == "yarn":
                option = (option[0], "rope")
            fault = _fault(option)
            if fault and _dest(option[0]) in of_details:
                lost[f"{fault}: MindSpeed-LLM has no such option or value"] = None
                continue
            kept += option
        groups.append((name, kept + own.get(name, [])))
    groups.append(("checkpoints", ["--ckpt-format", "torch"]))
    by_dest = option_table()[2]
    unsaid = (
        f"{dest} {value!r}: MindSpeed-LLM has no such option"
        for dest, value in of_details.items()
        if dest not in by_dest and dest not in TRANSLATED and not any(dest in x for x in lost)
    )
    missing = (*of_core.yours, *_unscaled(details), *unsaid, *lost)
    return [(name, words) for name, words in groups if words], tuple(dict.fromkeys(missing))


TRANSLATED = (
    *("layernorm_epsilon", "rope_type", "use_rope_scaling", "rope_scaling_factor", "mscale"),
    *("rotary_scaling_factor", "mscale_all_dim", "original_max_position_embeddings"),
    *("beta_fast", "beta_slow", "yarn_original_max_position_embeddings", "yarn_beta_fast"),
    *("yarn_beta_slow", "yarn_correction_range_round_to_int", "position_embedding_type"),
)
"""Settings of megatron-core that have other names, or other words, here."""


def _dest(flag: str) -> str:
    named = flag_table()[1].get(flag)
    return named.dest if named else ""


def _fault(option: Option) -> str:
    """Return an option as written where the parser has not it, or not its value."""
    one = option_table()[1].get(option[0])
    values = [value.strip("'") for value in option[1:]]
    bad = one is None or (one.choices and any(value not in one.choices for value in values))
    return " ".join((option[0], *values)) if bad else ""


def _model_words(shape: ModelShape, details: DetailsSpec) -> list[str]:
    """Return its kernels, where layers are defined, and how positions are stretched."""
    words = ["--use-mcore-models", "--transformer-impl", "local", "--no-masked-softmax-fusion"]
    words += ["--use-flash-attn"] * shape.flash_attention
    words += ["--use-fused-rotary-pos-emb"] * (shape.positions == "rope")
    words += ["--use-fused-rmsnorm"] * (shape.norm == "rmsnorm")
    words += ["--use-fused-swiglu"] * shape.gated
    spec = SPECS["latent"] if shape.latent else SPECS["qk_norm"] * (details.qk_norm == "head")
    words += ["--spec", spec, "layer_spec"] if spec else []
    return [*words, *_stretched(details)]


def _stretched(details: DetailsSpec) -> list[str]:
    if details.rope_scaling == "llama3":
        return ["--rope-scaling-type", "llama3"]
    if details.rope_scaling != "yarn":
        return []
    stated = details.stated()
    words = ["--rope-scaling-type", "yarn"]
    for name, flag in STRETCHED.items():
        if name in stated:
            value = stated[name]
            words += [flag, str(int(value)) if name in WHOLE else f"{value:g}"]
    return words


LLAMA3 = {
    "rope_scaling_factor": 8.0,
    "rope_low_frequency": 1.0,
    "rope_high_frequency": 4.0,
    "rope_original_positions": 8192,
}
"""Constants of `apply_llama3_scaling` (mindspeed_llm/core/models/common/embeddings)."""


def _unscaled(details: DetailsSpec) -> list[str]:
    """Return what of stretched positions is a constant there, and another here."""
    if details.rope_scaling != "llama3":
        return []
    stated = details.stated()
    return [
        f"{name} {stated[name]!r}: MindSpeed-LLM has {constant!r}"
        for name, constant in LLAMA3.items()
        if stated.get(name, constant) != constant
    ]


def _expert_words(layout: Layout, shape: ModelShape) -> list[str]:
    """Return which layers have experts, and the kernels of these."""
    if not shape.n_experts:
        return []
    n_dense = dense_before(shape)
    words = ["--gemm-gradient-accumulation-fusion"]
    words += ["--moe-permute-fusion"] * (layout.value("dispatcher") == "alltoall")
    words += ["--fix-router"] * shape.forced_balance
    if n_dense:
        words += ["--first-k-dense-replace", str(n_dense), "--moe-layer-freq", "1"]
    return words


def _layout_words(layout: Layout) -> list[str]:
    """Return the layers of uneven stages, and the exchange of context-parallel ranks."""
    words = []
    if layout.pp > 1 and len(set(layout.stage_layers)) > 1:
        words += ["--num-layer-list", ",".join(map(str, layout.stage_layers))]
    if layout.cp > 1:
        words += ["--context-parallel-algo", EXCHANGES[layout.cp_comm]]
    return words


def mindspeed_settings(layout: Layout, problem: Problem) -> dict[str, str]:
    """Return the options of a plan with their values; one without a value has an empty text."""
    groups, _ = option_groups(layout, problem.shape, problem.job)
    options = (option for _, words in groups for option in options_of(words))
    return {option[0]: " ".join(option[1:]) for option in options}


PARTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("tp",), ("tensor_model_parallel_size",)),
    (("sp",), ("sequence_parallel",)),
    (
        ("pp", "vpp", "stage_layers"),
        (
            "pipeline_model_parallel_size",
            "num_layers_per_virtual_pipeline_stage",
            "num_virtual_stages_per_pipeline_rank",
            "num_layer_list",
        ),
    ),
    (("cp", "cp_comm"), ("context_parallel_size", "context_parallel_algo")),
    (("ep", "etp"), ("expert_model_parallel_size", "expert_tensor_parallel_size")),
    (("mbs",), ("micro_batch_size",)),
    (("gbs",), ("global_batch_size",)),
    (
        ("recompute", "recompute_layers", "recompute_modules"),
        (
            "recompute_granularity",
            "recompute_method",
            "recompute_num_layers",
            "recompute_modules",
        ),
    ),
    (("zero", "dp_shard"), ("use_distributed_optimizer",)),
    (("dp_overlap",), ("overlap_grad_reduce", "overlap_param_gather")),
    (("dispatcher",), ("moe_token_dispatcher_type", "moe_permute_fusion")),
)
"""Fields of a layout and the options that say them."""


def changed_options(
    run: ExistingRun, old: Layout, new: Layout, after: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the options of what a script says otherwise than `new`; None takes one out."""
    by_name, by_dest = option_table()[1:]
    wanted = {by_name[name].dest: (name, value) for name, value in after.items()}
    entries: dict[str, str | None] = {}
    for fields, dests in PARTS:
        if all(_value(old, name) == _value(new, name) for name in fields):
            continue
        for dest in dests:
            stated = run.settings.get(dest)
            if dest in wanted:
                name, value = wanted[dest]
                if stated is None or not _says(stated, value):
                    entries[name] = value
            elif stated not in (None, False):
                entries[by_dest[dest].flags[0]] = None
    if new.zero == 0 and run.settings.get("overlap_param_gather"):
        entries["--overlap-param-gather"] = None
    return entries


def _value(layout: Layout, name: str) -> Any:
    return layout.value(name) if name == "dispatcher" else getattr(layout, name)


def _says(stated: Any, value: str) -> bool:
    if isinstance(stated, bool):
        return stated
    text = " ".join(map(str, stated)) if isinstance(stated, (list, tuple)) else str(stated)
    return text == value
