"""Flags that Megatron-LM refuses beside each other: sizes, batches, pipeline.

Settings are named as Megatron's argument parser stores them (`num_query_groups` for
`--num-query-groups`). Codes go on from those of `megatron`: MLM12x-14x sizes and general,
MLM21x-22x pipeline.
"""

import re
from math import prod

from searches.frameworks.case import Case, NotStatedError
from searches.frameworks.megatron.layouts import ARGUMENTS, MICROBATCHES, TRANSFORMER_CONFIG
from searches.frameworks.megatron.settings import (
    CHOICES,
    SINGLE_QUEUE,
    enforced_in,
    flag,
    flag_number,
    flag_rule,
    flag_value,
    flags_rule,
    is_set,
)
from searches.frameworks.rule import holding

MODEL_PARALLEL_CONFIG = "megatron/core/model_parallel_config.py, ModelParallelConfig"
LAYER_LAYOUT = "megatron/core/transformer/pipeline_parallel_layer_layout.py"
PARSER = "megatron/training/arguments.py, parse_args"

NEEDED = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "max_position_embeddings",
    "seq_length",
    "micro_batch_size",
)
OLD_SPELLINGS = {
    "batch_size": "--micro-batch-size",
    "warmup": "--lr-warmup-fraction",
    "model_parallel_size": "--tensor-model-parallel-size",
    "checkpoint_activations": "--recompute-granularity full",
}
"""Flags of old releases that stop the program, and what to write."""
MANY_QUEUES = ("blackwell", "rubin")
"""First words of the generations that need no single hardware queue."""


# Sizes and general ---------------------------------------------------------------------------


def _missing(c: Case) -> list[str]:
    if flag(c, "use_checkpoint_args") or flag(c, "hybrid_layer_pattern"):
        return []
    other = {"num_layers": "encoder_num_layers", "seq_length": "encoder_seq_length"}
    return [
        flag_value(name)
        for name in NEEDED
        if flag(c, name) is None and flag(c, other.get(name, "")) is None
    ]


def _odd_words(c: Case) -> list[str]:
    return [
        f"{flag_value(name)} {c.settings[name]}"
        for name, choices in CHOICES.items()
        if c.setting(name) is not None and c.setting(name) not in choices
    ]


def _old(c: Case) -> list[str]:
    return [flag_value(name) for name in OLD_SPELLINGS if flag(c, name)]


def _needs_single_queue(c: Case) -> bool:
    if c.tp * c.cp == 1 or flag(c, "use_torch_fsdp2") or flag(c, "use_megatron_fsdp"):
        return False
    if flag(c, "overlap_moe_expert_parallel_comm"):
        return False
    return c.env.get(SINGLE_QUEUE) != "1"


def _queue_reason(c: Case) -> str:
    set_to = c.env.get(SINGLE_QUEUE)
    now = f"is {set_to}" if set_to else "is not set"
    return f"tp {c.tp}, cp {c.cp}: {SINGLE_QUEUE} must be 1 before Blackwell, and {now}"


def _mixed_training(c: Case) -> list[str]:
    by_steps = ("lr_decay_iters", "lr_warmup_iters")
    by_samples = ("train_samples", "lr_decay_samples", "lr_warmup_samples")
    if flag(c, "train_iters"):
        return [flag_value(name) for name in by_samples if flag(c, name)]
    if flag(c, "train_samples"):
        return [flag_value(name) for name in by_steps if flag(c, name)]
    return []


def _fusion(c: Case) -> str:
    """Return the flag by which the MLP fuses bias and activation."""
    return "bias_swiglu_fusion" if flag(c, "swiglu") else "bias_gelu_fusion"


def _two_activations(c: Case) -> list[str]:
    return holding(
        {
            f"--swiglu excludes {flag_value(other)}": flag(c, "swiglu") and flag(c, other)
            for other in ("squared_relu", "quick_geglu")
        }
    )


def _activation(c: Case) -> list[str]:
    """Return what is wrong with the activation, and with its fusion with the bias."""
    fused = flag(c, _fusion(c)) and (flag(c, "swiglu") or flag(c, "add_bias_linear"))
    two = _two_activations(c)
    if two or not fused:
        return two
    return holding(
        {
            "no kernel fuses a bias with --squared-relu": flag(c, "squared_relu"),
            "no kernel fuses a bias with --glu-linear-offset but that of --quick-geglu": flag(
                c, "glu_linear_offset"
            )
            != 0
            and not flag(c, "quick_geglu"),
            "the fusion of bias and activation excludes --use-te-activation-func": flag(
                c, "use_te_activation_func"
            ),
        }
    )


def _no_rope(c: Case) -> list[str]:
    """Return what is wrong with the pattern of layers without rotary positions."""
    every, layers = flag(c, "no_rope_freq"), flag_number(c, "num_layers")
    if not every:
        return []
    if isinstance(every, list | tuple):
        message = f"--no-rope-freq is a pattern of {len(every)} layers, the model has {layers}"
        return [message] * (len(every) != layers)
    return [f"--no-rope-freq {every} does not divide {layers} layers"] * (layers % every != 0)


_SIZES = (
    flag_rule(
        "MLM118",
        "flag of another release",
        lambda c: bool(c.lacking),
        lambda c: f"this release does not have {', '.join(words for words, _ in c.lacking)}",
        lambda c: "; ".join(f"for {words}: {instead}" for words, instead in c.lacking),
        enforced_in(PARSER),
    ),
    flag_rule(
        "MLM120",
        "flag that is not known",
        lambda c: bool(c.unknown),
        lambda c: (
            f"this release has no such flag: {', '.join(c.unknown)}; a fork or another"
            " release may have it"
        ),
        "the full name of a flag: abbreviations are refused as well",
        enforced_in(PARSER),
    ),
    flag_rule(
        "MLM121",
        "flag of an old release",
        lambda c: bool(_old(c)),
        lambda c: f"{', '.join(_old(c))}: no longer valid",
        lambda c: ", ".join(new for name, new in OLD_SPELLINGS.items() if flag(c, name)),
    ),
    flag_rule(
        "MLM119",
        "value that a flag does not take",
        lambda c: bool(c.refused),
        lambda c: "; ".join(c.refused),
        "a value of the right kind",
        enforced_in(PARSER),
    ),
    flags_rule(
        "MLM122",
        "flag that every run needs is missing",
        lambda c: [f"missing: {', '.join(_missing(c))}"] * bool(_missing(c)),
        "give them all",
    ),
    flags_rule(
        "MLM123",
        "word that a flag does not take",
        lambda c: [f"unknown: {', '.join(_odd_words(c))}"] * bool(_odd_words(c)),
        lambda c: "; ".join(
            f"{flag_value(name)} {'|'.join(choices)}"
            for name, choices in CHOICES.items()
            if c.setting(name) is not None and c.setting(name) not in choices
        ),
        enforced_in(PARSER),
    ),
    flag_rule(
        "MLM124",
        "hidden size does not divide by the heads",
        lambda c: (
            flag(c, "kv_channels") is None
            and flag_number(c, "hidden_size") % flag_number(c, "num_attention_heads") > 0
        ),
        lambda c: (
            f"hidden size {flag(c, 'hidden_size')} does not divide by"
            f" {flag(c, 'num_attention_heads')} heads"
        ),
        "--kv-channels with the width of a head",
    ),
    flag_rule(
        "MLM125",
        "fewer positions than tokens",
        lambda c: flag_number(c, "max_position_embeddings") < flag_number(c, "seq_length"),
        lambda c: (
            f"--max-position-embeddings {flag(c, 'max_position_embeddings')} is below"
            f" --seq-length {flag(c, 'seq_length')}; it is needed with rotary positions too"
        ),
        lambda c: f"--max-position-embeddings {flag(c, 'seq_length')}",
    ),
    flag_rule(
        "MLM126",
        "latent attention with query groups",
        lambda c: flag(c, "multi_latent_attention") and flag(c, "group_query_attention"),
        "--multi-latent-attention excludes --group-query-attention",
        "one of the two",
        enforced_in(ARGUMENTS, versions=">=0.16"),
    ),
    flag_rule(
        "MLM127",
        "hierarchical context parallelism with other sizes than cp",
        lambda c: (
            bool(flag(c, "hierarchical_context_parallel_sizes"))
            and prod(flag(c, "hierarchical_context_parallel_sizes")) != c.cp
        ),
        lambda c: (
            "--hierarchical-context-parallel-sizes"
            f" {flag(c, 'hierarchical_context_parallel_sizes')} do not multiply to cp {c.cp}"
        ),
        "sizes whose product is cp",
    ),
    flag_rule(
        "MLM128",
        "a2a+p2p without its sizes",
        lambda c: (
            "a2a+p2p" in flag(c, "cp_comm_type")
            and not flag(c, "hierarchical_context_parallel_sizes")
        ),
        "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes",
        "--cp-comm-type p2p",
    ),
    flag_rule(
        "MLM129",
        "list of exchanges that is not one a layer",
        lambda c: (
            c.cp > 1
            and isinstance(flag(c, "cp_comm_type"), list | tuple)
            and len(flag(c, "cp_comm_type")) not in (1, flag_number(c, "num_layers"))
        ),
        lambda c: (
            f"--cp-comm-type names {len(flag(c, 'cp_comm_type'))} exchanges for"
            f" {flag(c, 'num_layers')} layers"
        ),
        "one for all, or one a layer",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM130",
        "hybrid context parallelism beside what excludes it",
        lambda c: (
            holding(
                {
                    "--hybrid-context-parallel excludes a pipeline": c.pp > 1,
                    "it excludes CUDA graphs": flag(c, "enable_cuda_graph"),
                    "it excludes Megatron-FSDP": flag(c, "use_megatron_fsdp"),
                    "it needs --dataloader-type single": flag(c, "dataloader_type")
                    not in (None, "single"),
                    "it needs --calculate-per-token-loss": not flag(c, "calculate_per_token_loss"),
                }
            )
            if flag(c, "hybrid_context_parallel")
            else []
        ),
        "--context-parallel-size alone",
    ),
    flag_rule(
        "MLM131",
        "context or tensor parallelism with several hardware queues",
        lambda c: not c.generation.startswith(MANY_QUEUES) and _needs_single_queue(c),
        _queue_reason,
        f"export {SINGLE_QUEUE}=1",
        enforced_in(ARGUMENTS, versions=">=0.13"),
    ),
    flag_rule(
        "MLM132",
        "context or tensor parallelism with several hardware queues",
        _needs_single_queue,
        _queue_reason,
        f"export {SINGLE_QUEUE}=1",
        enforced_in(ARGUMENTS, versions="<0.13"),
    ),
    flag_rule(
        "MLM133",
        "two ways to give the global batch",
        lambda c: (
            flag(c, "step_batch_size_schedule") is not None
            and flag(c, "global_batch_size") is not None
        ),
        "--step-batch-size-schedule excludes --global-batch-size",
        "one of the two",
        enforced_in(ARGUMENTS, versions=">=0.18"),
    ),
    flag_rule(
        "MLM134",
        "weight shards that are no multiple of tp",
        lambda c: (
            flag(c, "tensor_parallel_num_weight_shards") is not None
            and flag_number(c, "tensor_parallel_num_weight_shards") % c.tp > 0
        ),
        lambda c: (
            "--tensor-parallel-num-weight-shards"
            f" {flag(c, 'tensor_parallel_num_weight_shards')} is no multiple of tp {c.tp}"
        ),
        "leave it out",
        enforced_in(MODEL_PARALLEL_CONFIG, versions=">=0.19"),
    ),
    flag_rule(
        "MLM135",
        "multi-token prediction with other positions",
        lambda c: (
            bool(flag(c, "mtp_num_layers"))
            and not flag(c, "use_rotary_position_embeddings")
            and flag(c, "position_embedding_type") not in ("rope", "none")
        ),
        lambda c: (
            f"--mtp-num-layers with --position-embedding-type {flag(c, 'position_embedding_type')}"
        ),
        "--position-embedding-type rope",
    ),
    flag_rule(
        "MLM136",
        "schedules by steps and by samples",
        lambda c: bool(_mixed_training(c)),
        lambda c: (
            f"{flag_value('train_iters' if flag(c, 'train_iters') else 'train_samples')}"
            f" excludes {', '.join(_mixed_training(c))}"
        ),
        "all by steps, or all by samples",
    ),
    flag_rule(
        "MLM137",
        "saving without an interval",
        lambda c: flag(c, "save") is not None and not flag(c, "save_interval"),
        "--save needs --save-interval",
        "--save-interval 500",
    ),
    flag_rule(
        "MLM138",
        "least learning rate above the largest",
        lambda c: flag(c, "lr") is not None and flag(c, "min_lr") > flag(c, "lr"),
        lambda c: f"--min-lr {flag(c, 'min_lr')} exceeds --lr {flag(c, 'lr')}",
        "a smaller --min-lr",
    ),
    flag_rule(
        "MLM139",
        "more than one source of data",
        lambda c: bool(flag(c, "mock_data")) and bool(flag(c, "data_path")),
        "--mock-data beside --data-path",
        "one of the two",
    ),
    flag_rule(
        "MLM140",
        "batch of the evaluation is no multiple of micro-batch x dp",
        lambda c: (
            (
                flag(c, "eval_global_batch_size") is not None
                or flag(c, "eval_micro_batch_size") is not None
            )
            and (flag(c, "eval_global_batch_size") or c.gbs)
            % ((flag(c, "eval_micro_batch_size") or c.mbs) * c.dp)
            > 0
        ),
        lambda c: (
            f"evaluation: {flag(c, 'eval_global_batch_size') or c.gbs} sequences do not"
            f" divide by {flag(c, 'eval_micro_batch_size') or c.mbs} x dp {c.dp}"
        ),
        "leave both --eval-*-batch-size out",
        enforced_in(f"{ARGUMENTS}; {MICROBATCHES}", versions=">=0.18"),
    ),
    flags_rule(
        "MLM141",
        "activation that cannot be had so",
        _activation,
        lambda c: "one of the two" if _two_activations(c) else flag_value(f"no_{_fusion(c)}"),
        enforced_in(f"{TRANSFORMER_CONFIG}; megatron/training/argument_utils.py"),
    ),
    flags_rule(
        "MLM142",
        "layers without rotary positions that do not fit the layers",
        _no_rope,
        "a number that divides them, or a pattern of all of them",
        enforced_in(TRANSFORMER_CONFIG),
    ),
)


# Pipeline ------------------------------------------------------------------------------------

CHUNKING = (
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
    "pipeline_model_parallel_layout",
)
"""The ways to ask for several model chunks a rank."""
UNEVEN = (
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
"""The ways to split layers unevenly besides a layout."""


MOST_LAYERS = 100_000
"""Letters that repetitions of a layout may make, more than any model has layers."""


def layout_stages(text: str) -> list[str]:
    """Return the letters of every virtual stage of a layout string, in model order.

    E embedding, t layer, m multi-token prediction, L loss; `|` ends a stage, `(..)*n` and `t*n`
    repeat, commas mean nothing.

    >>> layout_stages("Et*2|(t|)*2tL")
    ['Ett', 't', 't', 'tL']
    """
    plain, n_left = text.replace(",", "").replace(" ", ""), MOST_LAYERS

    def repeated(match: re.Match[str]) -> str:
        nonlocal n_left
        n = min(int(match[2][:9]), max(1, n_left // max(1, len(match[1]))))
        n_left -= n * len(match[1])
        return match[1] * n

    for group in (r"\(([^()]*)\)\*(\d+)", r"([^()|*])\*(\d+)"):
        plain = re.sub(group, repeated, plain)
    return plain.split("|")


def _layers(c: Case) -> int:
    """Return the layers to split, those that stand for embedding and loss included."""
    if flag(c, "hybrid_layer_pattern") is not None:
        raise NotStatedError
    extra = int(bool(flag(c, "account_for_embedding_in_pipeline_split")))
    extra += bool(flag(c, "account_for_loss_in_pipeline_split"))
    return flag_number(c, "num_layers") + extra


def _ends(c: Case) -> tuple[int, int, list[int]]:
    """Return the middle layers and stages that named ends leave, and the ends."""
    ends = [int(flag(c, name)) for name in UNEVEN[:2] if flag(c, name) is not None]
    return _layers(c) - sum(ends), c.pp - len(ends), ends


def _bad_ends(c: Case) -> list[str]:
    middle, stages, ends = _ends(c)
    if not ends or is_set(c, CHUNKING[2]):
        return []
    if min(ends) < 1:
        return ["an end stage needs at least one layer"]
    if bool(middle) != bool(stages) or middle < 0 or stages < 0:
        return [f"the ends leave {middle} layers for {stages} middle stages"]
    if stages and middle % stages:
        return [f"{middle} middle layers do not divide over {stages} middle stages"]
    chunks = [*ends, *([middle // stages] if stages else [])]
    odd = [n for n in chunks if n % c.vpp]
    return [f"a rank's {odd[0]} layers do not divide by vpp {c.vpp}"] if odd else []


def _uneven_alone(c: Case) -> bool:
    """Tell whether layers / pp decides what a rank holds."""
    return not is_set(c, CHUNKING[2]) and not any(is_set(c, name) for name in UNEVEN[:2])


def _per_stage(c: Case) -> int:
    return int(flag(c, CHUNKING[0]))


def _layout_faults(c: Case) -> list[str]:
    text = flag(c, CHUNKING[2])
    if text is None:
        return []
    stages = layout_stages(str(text))
    letters = "".join(stages)
    odd = sorted(set(letters) - set("EtmL"))
    if odd:
        return [f"unknown letters {' '.join(odd)}"]
    if len(stages) % c.pp:
        return [f"{len(stages)} stages do not divide by pp {c.pp}"]
    mtp = int(flag(c, "mtp_num_layers") or 0)
    holds = [i for i, stage in enumerate(stages) if "m" in stage]
    return holding(
        {
            "it must begin with its one E": letters.count("E") != 1 or letters[0] != "E",
            "it must end with its one L": letters.count("L") != 1 or letters[-1] != "L",
            f"{letters.count('t')} layers, not {flag(c, 'num_layers')}": letters.count("t")
            != flag_number(c, "num_layers"),
            f"{letters.count('m')} layers of multi-token prediction, not {mtp}": letters.count("m")
            != mtp,
            "layers stand after multi-token prediction": "t" in letters[letters.find("m") :]
            if "m" in letters
            else False,
            "multi-token prediction is spread over stages": len(holds) > 1,
            "multi-token prediction stands in an early chunk of its rank": any(
                i < len(stages) - c.pp for i in holds
            ),
        }
    )


_PIPELINE = (
    flag_rule(
        "MLM210",
        "layers do not divide by pp",
        lambda c: (
            _uneven_alone(c)
            and _layers(c) % c.pp > 0
            and (not is_set(c, CHUNKING[1]) or any(is_set(c, name) for name in UNEVEN[2:]))
        ),
        lambda c: (
            f"pipeline: {_layers(c)} layers do not divide by pp {c.pp}"
            + (
                ", embedding and loss counted as flags say"
                if _layers(c) != flag(c, "num_layers")
                else ""
            )
        ),
        "--pipeline-model-parallel-layout, or --account-for-embedding-in-pipeline-split and"
        " --account-for-loss-in-pipeline-split",
    ),
    flag_rule(
        "MLM211",
        "two ways to ask for interleaving",
        lambda c: sum(is_set(c, name) for name in CHUNKING) > 1,
        lambda c: (
            f"{' and '.join(flag_value(n) for n in CHUNKING if is_set(c, n))} exclude each other"
        ),
        "one of them",
    ),
    flag_rule(
        "MLM212",
        "layers of a rank do not divide into chunks of the named size",
        lambda c: (
            is_set(c, CHUNKING[0])
            and _uneven_alone(c)
            and _layers(c) % c.pp == 0
            and _layers(c) // c.pp % _per_stage(c) > 0
        ),
        lambda c: (
            f"interleaving: {_layers(c) // c.pp} layers of a rank do not divide by"
            f" {_per_stage(c)} a chunk"
        ),
        "a size that divides them",
    ),
    flag_rule(
        "MLM213",
        "chunks by size with named end stages",
        lambda c: is_set(c, CHUNKING[0]) and any(is_set(c, name) for name in UNEVEN[:2]),
        f"{flag_value(CHUNKING[0])} does not go with named end stages",
        flag_value(CHUNKING[1]),
    ),
    flag_rule(
        "MLM214",
        "interleaving over two ranks without overlapped messages",
        lambda c: c.vpp > 1 and c.pp == 2 and not flag(c, "overlap_p2p_comm"),
        "--no-overlap-p2p-communication with interleaving needs pp above 2",
        "leave --no-overlap-p2p-communication out",
    ),
    flags_rule(
        "MLM215",
        "named end stages that do not add up",
        _bad_ends,
        "sizes that leave the middle stages equal shares",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flag_rule(
        "MLM216",
        "named end stages beside counted embedding or loss",
        lambda c: any(is_set(c, n) for n in UNEVEN[:2]) and any(is_set(c, n) for n in UNEVEN[2:]),
        "--decoder-*-pipeline-num-layers exclude --account-for-*-in-pipeline-split",
        "one of the two",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flag_rule(
        "MLM217",
        "layers of a rank do not divide by vpp",
        lambda c: (
            _uneven_alone(c)
            and not is_set(c, CHUNKING[0])
            and _layers(c) % (c.pp * c.vpp) > 0
            and (is_set(c, CHUNKING[1]) or not _layers(c) % c.pp)
        ),
        lambda c: f"interleaving: {_layers(c)} layers do not divide by pp {c.pp} x vpp {c.vpp}",
        "a vpp that divides the layers of a rank",
        enforced_in(
            "megatron/core/transformer/transformer_block.py, get_num_layers_to_build", "start"
        ),
    ),
    flag_rule(
        "MLM218",
        "layout beside another way to split layers",
        lambda c: is_set(c, CHUNKING[2]) and any(is_set(c, name) for name in UNEVEN),
        lambda c: (
            f"{flag_value(CHUNKING[2])} excludes"
            f" {', '.join(flag_value(n) for n in UNEVEN if is_set(c, n))}"
        ),
        "the layout alone",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM219",
        "layout that does not hold the model",
        lambda c: [f"layout: {fault}" for fault in _layout_faults(c)],
        "E first, t for every layer, L last, stages in multiples of pp",
        enforced_in(f"{ARGUMENTS}; {LAYER_LAYOUT}"),
    ),
    flags_rule(
        "MLM220",
        "offloaded activations beside a pipeline or recompute",
        lambda c: (
            holding(
                {
                    "--cpu-offloading-num-layers excludes a pipeline": c.pp > 1,
                    "it excludes recompute": flag(c, "recompute_granularity") is not None
                    or flag(c, "recompute_activations"),
                    f"it must be below the {flag(c, 'num_layers')} layers": flag(
                        c, "cpu_offloading_num_layers"
                    )
                    >= flag_number(c, "num_layers"),
                }
            )
            if flag(c, "cpu_offloading_num_layers") > 0
            else []
        ),
        "leave --cpu-offloading-num-layers out",
        enforced_in(TRANSFORMER_CONFIG),
    ),
    flags_rule(
        "MLM221",
        "deferred weight gradient of the embedding without what it needs",
        lambda c: (
            holding(
                {
                    "--defer-embedding-wgrad-compute needs a pipeline": c.pp == 1,
                    "it needs fused gradient accumulation": not flag(
                        c, "gradient_accumulation_fusion"
                    ),
                }
            )
            if flag(c, "defer_embedding_wgrad_compute")
            else []
        ),
        "leave it out",
        enforced_in(MODEL_PARALLEL_CONFIG),
    ),
)

RULES = _SIZES + _PIPELINE
"""Rules over sizes, batches and pipeline of an existing run."""
