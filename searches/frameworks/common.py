"""Layout rules that several frameworks have, each under a code of its own."""

from costmodels.layers.kinds import KIND_ALIASES
from costmodels.optimizers.records import OPTIMIZERS
from costmodels.shapes import DENSE, MOE, ModelShape
from searches.frameworks.case import RANK_ORDER, UNKNOWN, Case
from searches.frameworks.rule import FrameworkRule, When


def kind_sequence(shape: ModelShape) -> tuple[str, ...]:
    """Return the kind of each layer in model order."""
    return tuple(shape.kinds[i] for i in shape.layer_sequence)


def other_kinds(shape: ModelShape) -> list[str]:
    """Return the kinds of layers of a model but dense and expert layers."""
    counted = zip(shape.kinds, shape.kind_counts, strict=True)
    return [kind for kind, n in counted if n and kind not in (DENSE, MOE)]


_PLAIN = {name: alias.partition("+") for alias, name in KIND_ALIASES.items()}


def mixer_and_feed(kind: str) -> tuple[str, str]:
    """Return the mixer and the feed of a kind of layer by its name, whatever its variant.

    >>> mixer_and_feed("moe"), mixer_and_feed("mamba2+none")
    (('attention', 'moe'), ('mamba2', 'none'))
    """
    plain = kind.partition("@")[0]
    mixer, _, feed = _PLAIN.get(plain) or plain.partition("+")
    return mixer, feed


SPLIT_MIXERS = ("attention", "window", "chunk")
"""What the plans of tensor parallelism of transformers' classes split."""


def unsplit_kinds(shape: ModelShape) -> list[str]:
    """Return the kinds of a model's layers that such plans do not split."""
    return [
        kind
        for kind in other_kinds(shape)
        if mixer_and_feed(kind)[0] not in SPLIT_MIXERS or mixer_and_feed(kind)[1] == "none"
    ]


def whole_sequence_kinds(shape: ModelShape) -> list[str]:
    """Return the kinds of a model's layers that need whole sequences, beside causal attention."""
    mixers = (*SPLIT_MIXERS, "none")
    return [kind for kind in other_kinds(shape) if mixer_and_feed(kind)[0] not in mixers]


def trains_adapters(case: Case) -> bool:
    """Tell whether a case is known to train adapters alone: then plain replicas do as well."""
    return case.job is not UNKNOWN and case.job.tuning is not None


def tower_on_one_rank(code: str, framework: str, source: str) -> FrameworkRule:
    """A vision tower is whole on every rank, and so are the sequences behind it."""
    return FrameworkRule(
        code,
        framework,
        "a vision tower that is split, or in a pipeline",
        "planner",
        source,
        lambda c: (c.model.vision is not None) & ((c.tp > 1) | (c.cp > 1) | (c.pp > 1)),
        lambda c: (
            f"vision tower with tp {c.tp}, cp {c.cp} and pp {c.pp}: transformers runs it whole"
            " on every rank"
        ),
        "tp 1, cp 1 and pp 1",
    )


def degrees_positive(code: str, framework: str, source: str) -> FrameworkRule:
    """Every degree is at least 1."""
    return FrameworkRule(
        code,
        framework,
        "a degree below 1",
        "parse",
        source,
        lambda c: (c.tp < 1) | (c.pp < 1) | (c.cp < 1) | (c.ep < 1),
        lambda c: f"degrees: tp {c.tp}, pp {c.pp}, cp {c.cp}, ep {c.ep}",
        "1 for an axis that is off",
    )


def degrees_divide(code: str, framework: str, source: str) -> FrameworkRule:
    """The model-parallel degrees divide the devices."""
    return FrameworkRule(
        code,
        framework,
        "tp x pp x cp does not divide the devices",
        "parse",
        source,
        lambda c: c.n_devices % (c.tp * c.pp * c.cp) > 0,
        lambda c: (
            f"degrees: tp {c.tp} x pp {c.pp} x cp {c.cp} do not divide {c.n_devices} devices"
        ),
        "degrees whose product divides the devices",
    )


def batch_divides(code: str, framework: str, source: str, when: When = "parse") -> FrameworkRule:
    """The global batch is a multiple of what all replicas take at a time."""
    return FrameworkRule(
        code,
        framework,
        "global batch is no multiple of micro-batch x dp",
        when,
        source,
        lambda c: c.gbs % (c.mbs * c.dp) > 0,
        lambda c: f"batch: {c.gbs} sequences do not divide by {c.mbs} x dp {c.dp}",
        lambda c: f"a global batch of {-(-c.gbs // (c.mbs * c.dp)) * c.mbs * c.dp}",
        batches=True,
    )


def heads_divide(code: str, framework: str, source: str, when: When) -> FrameworkRule:
    """Every tensor-parallel rank holds whole heads."""
    return FrameworkRule(
        code,
        framework,
        "attention heads do not divide by tp",
        when,
        source,
        lambda c: c.model.heads % c.tp > 0,
        lambda c: f"tensor parallelism: {c.model.heads} heads do not divide by tp {c.tp}",
        "a tp that divides the heads",
    )


def columns_divide(code: str, framework: str, source: str, when: When = "start") -> FrameworkRule:
    """Every tensor-parallel rank holds the same number of columns of a dense MLP."""
    return FrameworkRule(
        code,
        framework,
        "MLP width does not divide by tp",
        when,
        source,
        lambda c: (c.model.ffn % c.tp > 0) & (c.model.n_expert_layers < c.model.layers),
        lambda c: f"tensor parallelism: FFN width {c.model.ffn} does not divide by tp {c.tp}",
        "a tp that divides it",
    )


def kv_heads_split_or_replicated(
    code: str, framework: str, source: str, versions: str = "", when: When = "parse"
) -> FrameworkRule:
    """KV heads are split over the tensor-parallel ranks, or replicated on them."""
    return FrameworkRule(
        code,
        framework,
        "KV heads neither divide by tp nor divide it",
        when,
        source,
        lambda c: (c.model.kv_heads % c.tp > 0) & (c.tp % c.model.kv_heads > 0),
        lambda c: (
            f"tensor parallelism: {c.model.kv_heads} KV heads neither divide by tp {c.tp} nor"
            " divide it"
        ),
        "a tp that divides the KV heads or is a multiple of them",
        versions=versions,
    )


def kv_heads_split(
    code: str, framework: str, source: str, when: When = "parse", versions: str = ""
) -> FrameworkRule:
    """KV heads are split over the tensor-parallel ranks and never replicated."""
    return FrameworkRule(
        code,
        framework,
        "KV heads do not divide by tp",
        when,
        source,
        lambda c: sum((n % c.tp > 0) for n in _kv_heads(c.model)) > 0,
        lambda c: (
            f"tensor parallelism: {_first_odd(c)} KV heads do not divide by tp {c.tp}, and"
            " they are not replicated"
        ),
        "a tp that divides the KV heads",
        versions=versions,
    )


def _kv_heads(model: ModelShape) -> tuple[int, ...]:
    """Return the KV heads of a model and of its variants."""
    return (model.kv_heads, *(model.of_kind(f"@{x.name}").kv_heads for x in model.variants))


def _first_odd(c: Case) -> int:
    return next((n for n in _kv_heads(c.model) if n % c.tp), c.model.kv_heads)


def sequence_chunks(code: str, framework: str, source: str, when: When) -> FrameworkRule:
    """Every context-parallel rank holds two chunks of a sequence."""
    return FrameworkRule(
        code,
        framework,
        "the sequence does not cut into 2 cp chunks",
        when,
        source,
        lambda c: (c.cp > 1) & (c.job.seq_len % (2 * c.cp) > 0),
        lambda c: f"context parallelism: {c.job.seq_len} tokens do not divide by 2 x cp {c.cp}",
        "a cp that does, or another sequence length",
    )


def dense_without_experts(
    code: str, framework: str, source: str, when: When = "parse"
) -> FrameworkRule:
    """Expert parallelism needs experts."""
    return FrameworkRule(
        code,
        framework,
        "expert parallelism of a dense model",
        when,
        source,
        lambda c: (c.ep > 1) & (c.model.n_experts == 0),
        "expert parallelism: the model is dense",
        "ep 1",
    )


def experts_divide(code: str, framework: str, source: str, when: When) -> FrameworkRule:
    """Every expert-parallel rank holds the same number of experts."""
    return FrameworkRule(
        code,
        framework,
        "experts do not divide by ep",
        when,
        source,
        lambda c: c.model.n_experts % c.ep > 0,
        lambda c: f"expert parallelism: {c.model.n_experts} experts do not divide by ep {c.ep}",
        "an ep that divides the experts",
    )


def usual_rank_order(code: str, framework: str, source: str) -> FrameworkRule:
    """Only the usual order of ranks can be had."""
    return FrameworkRule(
        code,
        framework,
        "another order of ranks",
        "planner",
        source,
        lambda c: c.rank_order != RANK_ORDER,
        lambda c: f"rank order {c.rank_order}: there is no setting for it",
        RANK_ORDER,
    )


def optimizer_on_device(code: str, framework: str, source: str, setting: str) -> FrameworkRule:
    """What goes to the host takes the weights along."""
    return FrameworkRule(
        code,
        framework,
        "optimizer alone on the host",
        "planner",
        source,
        lambda c: c.optimizer_offload == 1,
        f"optimizer on the host: {setting} moves weights and gradients too, which has no price",
        "optimizer_offload off",
    )


def activations_on_device(code: str, framework: str, source: str) -> FrameworkRule:
    """Stored activations stay where they are."""
    return FrameworkRule(
        code,
        framework,
        "stored activations on the host",
        "planner",
        source,
        lambda c: c.activation_offload_layers > 0,
        "activations on the host: there is no setting for it",
        "activation_offload off",
    )


def one_copy_of_weights(code: str, framework: str, source: str) -> FrameworkRule:
    """There is no second copy of sharded weights over smaller groups."""
    return FrameworkRule(
        code,
        framework,
        "a second copy of the weights",
        "planner",
        source,
        lambda c: c.hpz > 1,
        lambda c: (
            f"hpz {c.hpz}: there is no second copy of sharded weights that a step fills once"
            " and then gathers from"
        ),
        "hpz 1",
    )


def narrow_moments(code: str, framework: str, source: str) -> FrameworkRule:
    """Both moments are in fp32 with fp32 master weights."""
    return FrameworkRule(
        code,
        framework,
        "moments of Adam in bf16",
        "planner",
        source,
        lambda c: c.job.optimizer_states != "fp32",
        "optimizer_states bf16-moments: there are none beside a master copy in fp32",
        "optimizer_states fp32",
    )


def master_copy(code: str, framework: str, source: str) -> FrameworkRule:
    """The optimizer has a copy of 16-bit weights in fp32."""
    return FrameworkRule(
        code,
        framework,
        "weights and states in bf16 alone",
        "planner",
        source,
        lambda c: c.job.recipe.is_narrow,
        lambda c: f"precision {c.job.precision}: written with a master copy in fp32 alone",
        "precision bf16",
    )


def known_optimizer(code: str, framework: str, source: str) -> FrameworkRule:
    """The optimizer is one that its record says the framework has."""
    named = [x.name for x in OPTIMIZERS.values() if framework in x.frameworks]
    return FrameworkRule(
        code,
        framework,
        "an optimizer that there is none of",
        "planner",
        source,
        lambda c: c.job.optimizer not in named,
        lambda c: f"optimizer {c.job.optimizer}: no file for this framework can say it",
        f"optimizer {' or '.join(named)}",
        is_of_job=True,
    )


def inputs_alone_leave(code: str, framework: str, source: str, setting: str) -> FrameworkRule:
    """Of stored activations the inputs of recomputed layers go to the host, no others."""
    return FrameworkRule(
        code,
        framework,
        "activations on the host without full recompute",
        "planner",
        source,
        lambda c: (c.activation_offload_layers > 0) & c.is_recompute("none", "selective"),
        f"activations on the host: {setting} moves the inputs of recomputed layers only",
        "recompute full, or activation_offload off",
    )


def overlap_stays(code: str, framework: str, source: str) -> FrameworkRule:
    """Gathers and reductions always run beside compute."""
    return FrameworkRule(
        code,
        framework,
        "data-parallel traffic that runs beside nothing",
        "planner",
        source,
        lambda c: c.dp_overlap == 0,
        "dp_overlap off: FSDP2 prefetches, and no setting keeps it from that",
        "dp_overlap on",
    )


def plain_schedule(c: Case) -> str:
    """Return the schedule without a split backward that comes closest."""
    return f"schedule {'1f1b' if c.vpp == 1 else 'interleaved'}"
