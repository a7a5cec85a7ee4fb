"""Kinds of layers as settings of megatron-core, and back: windows, delta nets, hybrid patterns."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from costmodels.layers.kinds import KIND_ALIASES, LAYER_KINDS, MIXERS
from costmodels.plans import Layout
from costmodels.shapes import ModelShape
from planner.frameworks.megatron.details import causal_window
from searches.frameworks.common import kind_sequence, mixer_and_feed
from searches.frameworks.megatron.layer_kinds import (
    CUT,
    DELTA_CHUNK,
    FEED_SYMBOLS,
    LATENT,
    MAMBA_CHUNK,
    MAMBA_CONV,
    PREDICTION,
    has_mixer,
    hybrid_pattern,
    is_hybrid,
    layer_interval,
    linear_layers,
    prediction_pattern,
    windowed_layers,
)
from searches.frameworks.releases import version_key

Setting = Callable[[str], Any]
"""Returns a setting by its dest."""
DELTA_NET, SPARSE = "gated_delta_net", "dsa"
"""Values of `--experimental-attention-variant`."""
PATTERNS = ("hybrid_layer_pattern", "hybrid_override_pattern")
"""Settings that hold a hybrid pattern, the older one last."""
_LINEAR = {
    "k_heads": "linear_num_key_heads",
    "v_heads": "linear_num_value_heads",
    "k_dim": "linear_key_head_dim",
    "v_dim": "linear_value_head_dim",
    "conv": "linear_conv_kernel_dim",
}
_MAMBA = {
    "heads": "mamba_num_heads",
    "head_dim": "mamba_head_dim",
    "groups": "mamba_num_groups",
    "state": "mamba_state_dim",
}
_INDEXER = {
    "heads": "dsa_indexer_n_heads",
    "head_dim": "dsa_indexer_head_dim",
    "top_k": "dsa_indexer_topk",
}
KIND_DESTS = (
    "window_size",
    "window_attn_skip_freq",
    "experimental_attention_variant",
    "linear_attention_freq",
    *_LINEAR.values(),
    *_MAMBA.values(),
    *_INDEXER.values(),
    *PATTERNS,
)
"""Settings that kinds of layers depend on."""


def kind_settings(shape: ModelShape) -> dict[str, object]:
    """Return the settings that say the mixers of a model and their sizes, but for the pattern.

    Nothing of a model that has attention over all keys alone.
    """
    settings: dict[str, object] = {}
    if shape.window is not None and has_mixer(shape, "window"):
        settings["window_size"] = (shape.window.size - 1, 0)
        flags, attends = windowed_layers(shape), _attention_layers(shape)
        if [flag for flag, has in zip(flags, attends, strict=True) if has].count(0):
            settings["window_attn_skip_freq"] = layer_interval(flags)
    if shape.delta_net is not None and has_mixer(shape, "gdn"):
        if not is_hybrid(shape):
            settings["experimental_attention_variant"] = DELTA_NET
            settings["linear_attention_freq"] = layer_interval(linear_layers(shape))
        settings |= {dest: getattr(shape.delta_net, name) for name, dest in _LINEAR.items()}
    if shape.indexer is not None and has_mixer(shape, "sparse"):
        # TransformerConfig refuses the fused rotation beside it.
        settings |= {"experimental_attention_variant": SPARSE, "apply_rope_fusion": False}
        settings |= {dest: getattr(shape.indexer, name) for name, dest in _INDEXER.items()}
    if shape.mamba2 is not None and has_mixer(shape, "mamba2"):
        settings |= {dest: getattr(shape.mamba2, name) for name, dest in _MAMBA.items()}
    return settings


def _attention_layers(shape: ModelShape) -> list[bool]:
    """Return which of Megatron-LM's layers have attention, over all keys or a window."""
    attends = [mixer_and_feed(kind) for kind in kind_sequence(shape)]
    if not is_hybrid(shape):
        return [mixer in ("attention", "window") for mixer, _ in attends]
    flags = []
    for mixer, feed in attends:
        flags += [mixer in ("attention", "window")] * (mixer != "none")
        flags += [False] * (feed != "none")
    return flags


def pattern_settings(layout: Layout, shape: ModelShape) -> dict[str, object]:
    """Return the pattern of a hybrid model with the cuts of a plan; nothing of another model."""
    if not is_hybrid(shape):
        return {}
    pattern = hybrid_pattern(shape, layout.stage_layers) + prediction_pattern(shape)
    return {PATTERNS[0]: pattern}


def hybrid_program(release: str) -> tuple[str, str]:
    """Return the program that trains hybrid models in a release, and the value of `--spec`.

    Source: Megatron-LM pretrain_mamba.py, renamed after 0.17; megatron/core/models/hybrid.
    """
    if version_key(release) < version_key("0.18"):
        spec = "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
        return "pretrain_mamba.py", spec
    spec = "megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec"
    return "pretrain_hybrid.py", spec


@dataclass(frozen=True, slots=True)
class StatedKinds:
    """The kinds of layers that settings say."""

    kinds: tuple[str, ...]
    """Of each layer in model order."""
    sections: Mapping[str, Mapping[str, int]]
    """Sizes of mixers, by section of the model file."""
    counts: tuple[int, ...] = ()
    """Layers of each virtual stage that the cuts of a pattern make; empty without cuts."""
    mtp_layers: int = 0
    """Layers of multi-token prediction that a pattern has."""

    @property
    def is_plain(self) -> bool:
        """Whether they are dense and expert layers alone, which have fields of their own."""
        return set(self.kinds) <= set(KIND_ALIASES.values())


def kind_runs(kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return kinds as entries of `layer_kinds`: a pattern where they repeat, else runs.

    >>> kind_runs(["window+moe", "moe"] * 2)
    [{'pattern': ['window+moe', 'moe'], 'repeat': 2}]
    >>> kind_runs(["dense", "moe", "moe"])
    [{'kind': 'dense', 'count': 1}, {'kind': 'moe', 'count': 2}]
    """
    n = len(kinds)
    runs = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    for period in range(2, n // 2 + 1):
        if n % period == 0 and list(kinds) == list(kinds[:period]) * (n // period):
            return [{"pattern": list(kinds[:period]), "repeat": n // period}]
    return [{"kind": kind, "count": count} for kind, count in runs]


def kinds_of_runs(runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the kind of each layer of the entries of `layer_kinds`."""
    kinds: list[str] = []
    for run in runs:
        pattern = run.get("pattern") or [run.get("kind")]
        kinds += list(pattern) * int(run.get("repeat") or run.get("count") or 1)
    return tuple(kinds)


def disagreements(stated: StatedKinds | None, model: Mapping[str, Any], written: str) -> list[str]:
    """Return where settings say other kinds of layers than a model file, a sentence each.

    `model` is the `model:` section of the file, `written` the settings as they stand in the run.
    """
    own = kinds_of_runs(model.get("layer_kinds") or ())
    there = Counter(own)
    if stated is None:
        return [f"no setting says {_counted(there)}, which the model file has"] if own else []
    if stated.is_plain and not own:
        return []
    notes = []
    if stated.kinds != own:
        here = Counter(stated.kinds)
        wanted = _counted(there) or "dense and expert layers alone"
        order = " in another order" if here == there else ""
        notes.append(
            f"{written}: {_counted(here)}; the model file, which is priced, has {wanted}{order}"
        )
    for section, sizes in stated.sections.items():
        other = model.get(section) or {}
        notes += [
            f"{section}.{name} is {value} in the run; the model file, which is priced, has"
            f" {other[name]}"
            for name, value in sizes.items()
            if other.get(name, value) != value
        ]
    return notes


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in kinds.items())


def named_kind(mixer: str, feed: str) -> str:
    """Return the kind of layer of a mixer and a feed."""
    name = f"{mixer}+{feed}"
    return KIND_ALIASES.get(name, name)


def gpt_kinds(get: Setting, experts: Sequence[int], layers: int) -> StatedKinds | None:
    """Return the kinds of a GPT model of whole layers; None where they say nothing of mixers.

    `get` returns a setting, `experts` flags the layers with routed experts.
    """
    window = causal_window(get("window_size"))
    linear = get("experimental_attention_variant") == DELTA_NET
    skipped = _flagged(get("window_attn_skip_freq"), layers) if window else None
    deltas = _flagged(get("linear_attention_freq"), layers) if linear else [0] * layers
    feeds = ["moe" if flag else "dense" for flag in experts]
    if get("experimental_attention_variant") == SPARSE:
        kinds = tuple(named_kind("sparse", feed) for feed in feeds)
        return StatedKinds(kinds, _sections(get, kinds))
    if not window and not linear:
        return None
    if deltas is None or (window and skipped is None):
        return None
    mixers = [
        "gdn" if delta else "window" if local else "attention"
        for delta, local in zip(deltas, skipped or [0] * layers, strict=True)
    ]
    kinds = tuple(map(named_kind, mixers, feeds))
    return StatedKinds(kinds, _sections(get, kinds))


def _flagged(freq: Any, layers: int) -> list[int] | None:
    """Return which layers are flagged, all but every n-th or those of a list; None: unreadable."""
    if freq is None:
        return [1] * layers
    if isinstance(freq, int) and not isinstance(freq, bool) and freq > 0:
        return [int((i + 1) % freq != 0) for i in range(layers)]
    if isinstance(freq, list) and len(freq) == layers:
        return [int(bool(x)) for x in freq]
    return None


def pattern_of(get: Setting) -> str:
    """Return the hybrid pattern that settings hold, without quotes; empty without one."""
    return next((str(get(dest)).strip("'\"") for dest in PATTERNS if get(dest)), "")


def hybrid_kinds(get: Setting, pattern: str, pairs_of: int = 0) -> StatedKinds | None:
    """Return the kinds of a hybrid model from its pattern; None for symbols without a kind.

    `pairs_of`: whole layers, where the pattern is known to have two symbols for each.
    """
    main, *mtp = pattern.split(PREDICTION)
    if not re.fullmatch(r"[M*+GE|\-]+", main):
        return None
    mixers = {"M": "mamba2", "G": "gdn", "*": "attention", LATENT: "attention"}
    feeds = {symbol: feed for feed, symbol in FEED_SYMBOLS.items() if symbol}
    symbols = main.replace(CUT, "")
    attends = _flagged(get("window_attn_skip_freq"), len(symbols))
    if causal_window(get("window_size")) and attends:
        local = [flag and symbol == "*" for flag, symbol in zip(attends, symbols, strict=True)]
    else:
        local = [False] * len(symbols)
    kinds = [
        named_kind("window" if over else mixers.get(symbol, "none"), feeds.get(symbol, "none"))
        for symbol, over in zip(symbols, local, strict=True)
    ]
    counts = [len(stage) for stage in main.split(CUT)] if CUT in main else []
    if 2 * pairs_of == len(kinds) and all(n % 2 == 0 for n in counts):
        pairs = zip(kinds[::2], kinds[1::2], strict=True)
        joined = [(one.partition("+")[0], other.partition("+")[2]) for one, other in pairs]
        names = [named_kind(*both) for both in joined]
        if all(name in LAYER_KINDS for name in names):
            kinds, counts = names, [n // 2 for n in counts]
    sequence = tuple(kinds)
    return StatedKinds(
        sequence, _sections(get, sequence), tuple(counts), len([x for x in mtp if x])
    )


def _sections(get: Setting, kinds: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the sizes of the mixers that some kinds have."""
    used = {MIXERS[mixer_and_feed(kind)[0]].section for kind in kinds}
    sections: dict[str, dict[str, int]] = {}
    if "window" in used:
        sections["window"] = {"size": causal_window(get("window_size"))}
    if "mamba2" in used:
        sizes = {name: int(get(dest) or 0) for name, dest in _MAMBA.items()}
        # d_inner = 2 h without a number of heads (MambaMixer).
        inner = 2 * int(get("hidden_size") or 0)
        sizes["heads"] = sizes["heads"] or inner // max(1, sizes["head_dim"])
        sections["mamba2"] = {**sizes, "conv": MAMBA_CONV, "chunk": MAMBA_CHUNK}
    if "indexer" in used:
        sections["indexer"] = {name: int(get(dest) or 0) for name, dest in _INDEXER.items()}
    if "delta_net" in used:
        sizes = {name: int(get(dest) or 0) for name, dest in _LINEAR.items()}
        sections["delta_net"] = {**sizes, "chunk": DELTA_CHUNK}
    return sections
