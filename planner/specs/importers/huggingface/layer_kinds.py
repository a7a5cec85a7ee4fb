"""The kind of each layer of a configuration, and the sizes that its mixers have.

A kind is a mixer and a feed (`window+moe`); the model file says them where they are not attention
everywhere with experts in every n-th layer after the first dense ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from costmodels.shapes import FEED_FIELDS, VARIED_FIELDS
from planner.errors import InputProblem, SpecError
from planner.specs.importers.huggingface.config import ODD_VALUES, Config, Found
from planner.specs.importers.huggingface.families.compressed_keys import (
    COMPRESSED_WORDS,
    compressed_mixers,
    compressed_sizes,
    stream_sizes,
)
from planner.specs.importers.huggingface.families.hybrids import (
    NEMOTRON_LETTERS,
    pattern_letters,
)
from planner.specs.importers.huggingface.rules import KEYS, Stated
from planner.specs.importers.huggingface.unpriced import flags_of, which_are_local
from planner.units import shown_value

_WORDS = {
    "mamba1": ("mamba",),
    "mamba2": ("mamba", "mamba2"),
    "conv": ("conv",),
    "sparse": ("indexed_attention", "minimax_m3_sparse"),
    "linear": ("lightning-attn", "lightning"),
}
"""Words of `layer_types` for a mixer, beside `linear_attention`."""
Sections = dict[str, dict[str, Found]]


@dataclass(frozen=True, slots=True)
class LayerList:
    """The layers of a model in their order."""

    kinds: tuple[str, ...]
    """`MIXER+FEED` of each."""
    source: Found
    """Where the order comes from."""
    sections: Sections
    """Sizes of mixers: by section of the model file, by field."""
    notes: tuple[str, ...] = ()
    variants: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Sizes of layers that differ from the model's, by the name behind `@` of their kind."""

    @property
    def is_plain(self) -> bool:
        """Every layer has the model's own attention."""
        return not self.variants and {x.partition("+")[0] for x in self.kinds} == {"attention"}

    @property
    def feeds(self) -> list[str]:
        """What stands behind the mixer of each layer."""
        return [kind.partition("@")[0].partition("+")[2] for kind in self.kinds]


def layers_of(
    config: Config, seq_len: int, routed: Sequence[bool], model: Mapping[str, Any]
) -> LayerList:
    """Return the layers of a configuration; `routed` says of each whether it has experts.

    `model`: what is known of the model's own sizes.

    Chunks as long as the `seq_len` of the job are none: hardly any framework has them.

    Raises `SpecError` for a layer of a kind that is not priced.
    """
    n_layers = len(routed)
    if config.look("layer_pattern").value is not None:
        return _of_pattern(config)
    if config.rules.twice:
        kinds = ("attention+dense", "attention+dense", "none+moe") * n_layers
        note = (
            "a layer has two attentions, two MLPs and experts beside the second: priced as three"
            " layers, one after the other"
        )
        return LayerList(kinds, config.always(), {}, (note,))
    feed = config.rules.feed
    feeds = [feed or ("moe" if on else "dense") for on in routed]
    _refuse_shared_indices(config)
    mixers, source, notes = _mixers(config, n_layers, seq_len)
    kinds = tuple(f"{mixer}+{feed}" for mixer, feed in zip(mixers, feeds, strict=True))
    if config.rules.beside:
        mixer = config.rules.mixer
        kinds = tuple(x for kind in kinds for x in (f"{mixer}+none", kind))
        notes += (
            "a state space stands beside attention in every layer: priced as two layers, one after"
            " the other",
        )
    layers = LayerList(kinds, source, dict(_sections(config, kinds)), notes)
    return _with_own(config, layers, model) if config.rules.own_layers else layers


def _with_own(config: Config, layers: LayerList, model: Mapping[str, Any]) -> LayerList:
    """Return the layers with what each has of its own; those without anything are left out."""
    assert config.rules.own_layers is not None  # asked where there is
    local = which_are_local(config, len(layers.kinds))
    try:
        own = config.rules.own_layers(
            Stated(config.section, lambda name: config.look(name).value, local)
        )
    except ODD_VALUES as error:
        message = f"widths of layers: {error}"
        raise SpecError(config.problem(None, message)) from None
    if len(own) != len(layers.kinds):
        message = f"widths of {len(own)} layers, and the model has {len(layers.kinds)}"
        raise SpecError(config.problem(None, message))
    kinds, variants = list[str](), dict[str, dict[str, int]]()
    stated = {"value_dim": model.get("head_dim"), "ffn": ffn_width(config), **model}
    for kind, one in zip(layers.kinds, own, strict=True):
        mixer, _, feed = kind.partition("+")
        mixer, feed = one.mixer or mixer, one.feed or feed
        if (mixer, feed) == ("none", "none"):
            continue
        sizes = _own_sizes(one.sizes, mixer, feed, stated)
        name = _variant_name(sizes)
        if sizes:
            variants[name] = sizes
        kinds.append(f"{mixer}+{feed}" + (f"@{name}" if sizes else ""))
    n_left_out, notes = len(layers.kinds) - len(kinds), layers.notes
    if n_left_out:
        notes += (f"{n_left_out} layer(s) with neither attention nor MLP are left out",)
    return replace(layers, kinds=tuple(kinds), variants=variants, notes=notes)


def ffn_width(config: Config) -> int | None:
    """Return the inner width of the model's own MLP; None where no key says it."""
    if several := config.ffn_width():
        return several[0]
    width: int | None = config.count("ffn").value
    return width


def _own_sizes(
    sizes: Mapping[str, int], mixer: str, feed: str, stated: Mapping[str, Any]
) -> dict[str, int]:
    """Return those sizes of a layer that it uses and that are not the model's, `stated`."""
    used = set(VARIED_FIELDS)
    used -= FEED_FIELDS if feed not in ("dense", "injected") else set()
    used -= used - FEED_FIELDS if mixer == "none" else set()
    used -= {"window"} if mixer != "window" else set()
    own = {key: sizes[key] for key in VARIED_FIELDS if key in used and sizes.get(key)}
    return {key: size for key, size in own.items() if size != stated.get(key)}


_LETTERS = {
    "heads": "h",
    "kv_heads": "kv",
    "head_dim": "d",
    "value_dim": "v",
    "ffn": "f",
    "window": "w",
    "kv_shared": "shared",
    "keys_as_values": "keyed",
    "reused": "again",
}


def _variant_name(sizes: Mapping[str, int]) -> str:
    """Return a name that says the sizes.

    >>> _variant_name({"heads": 12, "ffn": 768, "kv_shared": True})
    'h12-f768-shared'
    """
    parts = ((_LETTERS[key], "" if size is True else str(size)) for key, size in sizes.items())
    return "-".join(letters + size for letters, size in parts)


def _refuse_shared_indices(config: Config) -> None:
    """Refuse sparse attention that takes the keys which an earlier layer has chosen."""
    kinds = config.look("index_kinds")
    if isinstance(kinds.value, list) and any(kind != "full" for kind in kinds.value):
        message = "layers that take the keys of another layer's indexer, which is not priced"
        raise SpecError(config.problem(kinds.path, message))


def _mixers(
    config: Config, n_layers: int, seq_len: int
) -> tuple[list[str], Found, tuple[str, ...]]:
    """Return the mixer of each layer, where that comes from, and what is assumed."""
    if config.rules.mixer and not config.rules.beside:
        mixers, source = _other_mixers(config, n_layers)
        return mixers, source, ()
    local, window = which_are_local(config, n_layers), config.count("window", 0)
    types = config.look("layer_types")
    source = types if types.path else window
    longest = config.count("max_positions").value
    mixer = "chunk" if "chunk" in window.text else "window"
    if mixer == "chunk":
        longest = seq_len
    if not any(local) or not window.value or (longest and window.value >= longest):
        local = [False] * n_layers
    both = config.switch("both_sides")
    if both.value:
        words = "bidirectional", "bidirectional-window"
        return [words[on] for on in local], both, (_OF_ENCODERS,)
    return [mixer if on else "attention" for on in local], source, ()


_OF_ENCODERS = (
    "attention to tokens on both sides: the loss counts as one over all tokens, with the head over"
    " the vocabulary that a decoder has"
)


def _other_mixers(config: Config, n_layers: int) -> tuple[list[str], Found]:
    """Return the mixer of each layer of a type that has another one than attention in some."""
    if config.rules.mixer == "csa":
        return compressed_mixers(config, n_layers)
    rules, types = config.rules, config.look("layer_types")
    words: dict[Any, str] = {
        "full_attention": "attention",
        "attention": "window" if rules.mixer == "rglru" else "attention",
        "minicpm4": "attention",
        "recurrent": rules.mixer,
        "sliding_attention": "window",
        "linear_attention": rules.mixer,
        **dict.fromkeys(_WORDS.get(rules.mixer, ()), rules.mixer),
        1: "attention",
        0: rules.mixer,
    }
    if types.value is not None:
        listed = types.value if isinstance(types.value, list) else [types.value]
        for i, word in enumerate(listed):
            if isinstance(word, bool | list | dict) or word not in words:
                message = f"layers with {shown_value(word)}, which a {config.name} has not"
                raise SpecError(config.problem((*(types.path or ()), i), message))
        if len(listed) != n_layers:
            message = f"{len(listed)} layers are listed, and the model has {n_layers}"
            raise SpecError(config.problem(types.path, message))
        return [words[word] for word in listed], types
    flags = config.look("sparse_flags")
    if flags.value is not None:
        sparse = flags_of(config, flags, n_layers)
        return [rules.mixer if on else "attention" for on in sparse], flags
    if config.look("attention_layers_from_1").value is not None:
        those = {i - 1 for i in config.numbers("attention_layers_from_1") or ()}
        source = config.look("attention_layers_from_1")
        return ["attention" if i in those else rules.mixer for i in range(n_layers)], source
    attention = config.look("attention_layers")
    if attention.value is not None:
        those = set(config.numbers("attention_layers") or ())
        return ["attention" if i in those else rules.mixer for i in range(n_layers)], attention
    if period := config.count("attention_period").value:
        offset = config.count("attention_offset", 0).value or 0
        full = [i % period == offset for i in range(n_layers)]
        return ["attention" if on else rules.mixer for on in full], config.look("attention_period")
    every = config.count("linear_every")
    if every.value:
        full = [(i + 1) % every.value == 0 for i in range(n_layers)]
        return ["attention" if on else rules.mixer for on in full], every
    if rules.is_full is None:
        raise SpecError(_no_layers(config))
    full = [rules.is_full(i, n_layers) for i in range(n_layers)]
    return ["attention" if on else rules.mixer for on in full], config.always()


_SAYS_ATTENTION = (
    "layer_types",
    "layer_pattern",
    "attention_layers_from_1",
    "attention_layers",
    "attention_period",
    "linear_every",
)
"""Fields of which one says which layers have attention."""


def _no_layers(config: Config) -> InputProblem:
    """Return what is missing where no key says which layers have attention."""
    keys = config.rules.keys
    names = [name for x in _SAYS_ATTENTION for name in keys.get(x, KEYS[x])]
    null = [name for name in names if name in config.section]
    message = "is null" if null else f"{names[0]} is missing"
    fix = f"{config.name} needs it: it says which layers have attention"
    return config.problem((*config.path, null[0]) if null else None, message, fix)


def _of_pattern(config: Config) -> LayerList:
    """Return the layers that a pattern of letters, or a list of words, says one by one."""
    pattern = config.look("layer_pattern")
    letters = pattern_letters(pattern.value)
    if letters is None:
        message = f"expected a pattern of {' '.join(NEMOTRON_LETTERS)}, got"
        raise SpecError(config.problem(pattern.path, f"{message} {shown_value(pattern.value)}"))
    layers = config.count("layers")
    if layers.path and pattern.path and layers.value != len(letters):
        message = f"{len(letters)} layers, and {layers.text} is {layers.value}"
        raise SpecError(config.problem(pattern.path, message, "keep the right one"))
    kinds = tuple(NEMOTRON_LETTERS[letter] for letter in letters)
    return LayerList(kinds, pattern, dict(_sections(config, kinds)))


def _sections(config: Config, kinds: Sequence[str]) -> Iterator[tuple[str, dict[str, Found]]]:
    """Yield the sections of the mixers that layers have."""
    mixers = {kind.partition("+")[0] for kind in kinds}
    for name in ("window", "chunk"):
        if name in mixers:
            yield name, {"size": config.count("window")}
    if "bidirectional-window" in mixers:
        window = config.needed("window")
        both_sides = Found(2 * (window.value // 2) + 1, f"{window.text}, half on each side", None)
        yield "window", {"size": both_sides}
    if "mamba2" in mixers:
        yield "mamba2", _mamba2(config)
    if mixers & {"gdn", "kda"}:
        yield "delta_net", _delta_net(config)
    if "mamba1" in mixers:
        yield "mamba1", _mamba1(config)
    if "conv" in mixers:
        yield "short_conv", {"conv": config.needed("short_conv")}
    if "rglru" in mixers:
        width = config.count("lru_width")
        yield (
            "rglru",
            {
                "width": width if width.value else config.needed("hidden"),
                "heads": config.needed("heads"),
                "conv": config.needed("lru_conv"),
            },
        )
    if "factored" in mixers:
        yield "factored", {"q_rank": config.needed("q_factor")}
    if "linear" in mixers:
        yield "linear", _linear(config)
    if mixers & COMPRESSED_WORDS.keys():
        yield "compressed", compressed_sizes(config)
        yield "residual_streams", stream_sizes(config)
    if "sparse" in mixers:
        fields = {"heads": "index_heads", "head_dim": "index_dim", "top_k": "index_topk"}
        if config.count("index_block").value:
            fields["block"] = "index_block"
        yield "indexer", {name: config.needed(key) for name, key in fields.items()}


def _mamba2(config: Config) -> dict[str, Found]:
    """Return the sizes of a state space; the width of a head is computed where it is `auto`."""
    sizes = {
        "heads": config.needed("ssm_heads"),
        "head_dim": config.look("ssm_head_dim"),
        "groups": config.needed("ssm_groups"),
        "state": config.needed("ssm_state"),
        "conv": config.needed("ssm_conv"),
        "chunk": config.needed("ssm_chunk"),
    }
    if sizes["head_dim"].value in (None, "auto"):
        inner = config.count("ssm_inner")
        expand, hidden = config.count("ssm_expand").value or 2, config.needed("hidden").value
        width = inner.value or expand * hidden
        text = inner.text if inner.value else "expand * hidden"
        sizes["head_dim"] = Found(
            width // sizes["heads"].value, f"{text} / {sizes['heads'].text}", None
        )
    else:
        sizes["head_dim"] = config.needed("ssm_head_dim")
    return sizes


def _mamba1(config: Config) -> dict[str, Found]:
    """Return the sizes of the first Mamba's state space."""
    hidden, expand = config.needed("hidden"), config.needed("m1_expand")
    inner = config.count("m1_inner")
    if inner.value is None:
        inner = Found(hidden.value * expand.value, f"{expand.text} * {hidden.text}", expand.path)
    return {
        "inner": inner,
        "state": config.needed("m1_state"),
        "dt_rank": config.needed("m1_rank"),
        "conv": config.needed("m1_conv"),
    }


def _linear(config: Config) -> dict[str, Found]:
    """Return the sizes of linear attention: as many heads as queries, each with its own keys."""
    heads, width, hidden = (
        config.needed("heads"),
        config.count("head_dim"),
        config.needed("hidden"),
    )
    if (own := config.count("lin_k_heads")).value:
        heads, width = own, config.needed("lin_k_dim")
    if width.value is None:
        width = Found(hidden.value // heads.value, f"{hidden.text} / {heads.text}", None)
    return {"heads": heads, "head_dim": width, "chunk": config.needed("lin_chunk")}


def _delta_net(config: Config) -> dict[str, Found]:
    fields = {
        "k_heads": "lin_k_heads",
        "v_heads": "lin_v_heads",
        "k_dim": "lin_k_dim",
        "v_dim": "lin_v_dim",
        "conv": "lin_conv",
    }
    sizes = {name: config.needed(key) for name, key in fields.items()}
    if config.rules.full_gates:
        sizes["full_gates"] = Found(True, config.always().text, None)
    return sizes


def compressed(kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return layers as entries of `layer_kinds`: runs, or a pattern that repeats.

    >>> compressed(["dense", "dense", "moe"])
    [{'kind': 'dense', 'count': 2}, {'kind': 'moe', 'count': 1}]
    >>> compressed(["a", "a", "b"] * 4)
    [{'pattern': ['a', 'a', 'b'], 'repeat': 4}]
    """
    runs = compressed_runs(kinds)
    for start in range(min(len(kinds), 5)):
        rest = list(kinds[start:])
        for period in range(2, min(32, len(rest) // 2) + 1):
            if rest == [rest[i % period] for i in range(len(rest))]:
                n_repeats = len(rest) // period
                entries = [*compressed_runs(kinds[:start])]
                entries.append({"pattern": rest[:period], "repeat": n_repeats})
                entries += compressed_runs(rest[n_repeats * period :])
                return entries if len(entries) < len(runs) else runs
    return runs


def compressed_runs(kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return layers as runs of one kind each."""
    runs: list[dict[str, Any]] = []
    for kind in kinds:
        if runs and runs[-1]["kind"] == kind:
            runs[-1]["count"] += 1
        else:
            runs.append({"kind": kind, "count": 1})
    return runs


def shown_sections(sections: Sections) -> Iterator[tuple[str, str, Found]]:
    """Yield section, field and value of all sizes."""
    for section, fields in sections.items():
        for name, size in fields.items():
            yield section, name, size
