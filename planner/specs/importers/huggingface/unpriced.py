"""What a configuration has and the cost model has not: a note that says which way it errs.

Layers of a kind without a price at all are refused here and in `config`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from planner.errors import SpecError
from planner.specs.importers.huggingface.config import Config, Found
from planner.specs.importers.huggingface.rules import POST_NORMS
from planner.units import shown_value

_LOCAL = ("sliding_attention", "chunked_attention")


def notes_on(config: Config, document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note for each part that is priced otherwise than it is, or not at all.

    `document` is the model file that was read from the configuration.
    """
    return tuple(note for make in _NOTES if (note := make(config, document)))


def flags_of(config: Config, flags: Found, n_layers: int) -> list[bool]:
    """Return a list of true and false, or of ones and zeros, one for each layer.

    Entries beyond the layers are those of further modules. Raises `SpecError` for another list.
    """
    stated = flags.value
    is_list = isinstance(stated, list) and all(x in (0, 1) for x in stated)
    if not is_list or len(stated) < n_layers:
        message = f"expected true or false for {n_layers} layers, got {shown_value(stated)}"
        raise SpecError(config.problem(flags.path, message))
    return [bool(x) for x in stated[:n_layers]]


def which_are_local(config: Config, n_layers: int) -> list[bool]:
    """Return of each layer whether it sees a window (or a chunk) of the sequence only.

    Raises `SpecError` for a layer that has no attention, or another kind of it.
    """
    types = config.look("layer_types")
    if types.value is not None:
        listed = types.value if isinstance(types.value, list) else [types.value]
        for i, kind in enumerate(listed):
            # 1 is full attention and 0 linear attention in the files of MiniMax.
            if kind not in ("full_attention", "attention", 1, *_LOCAL) or kind is True:
                message = f"layers with {shown_value(kind)}, which the cost model does not have"
                raise SpecError(config.problem((*(types.path or ()), i), message))
        further = config.count("mtp_layers", 0).value or 0
        if len(listed) not in (n_layers, n_layers + further) and types.path:
            message = f"{len(listed)} layers are listed, and the model has {n_layers}"
            raise SpecError(config.problem(types.path, message))
        return [kind in _LOCAL for kind in listed[:n_layers]]
    flags = config.look("window_flags")
    if flags.value is not None:
        return flags_of(config, flags, n_layers)
    if config.look("window_on").value is False:
        return [False] * n_layers
    if is_full := config.rules.is_full:
        return [not is_full(i, n_layers) for i in range(n_layers)]
    if pattern := config.count("window_pattern").value:
        return [(i + 1) % pattern > 0 for i in range(n_layers)]
    alternating = config.look("attention_types")
    if alternating.value is not None:
        try:
            counts = [len(kinds) * times for kinds, times in alternating.value]
            if min(counts, default=0) < 0 or sum(counts) != n_layers:
                raise ValueError("not as many as there are layers")
            return [
                kind == "local" for kinds, times in alternating.value for kind in kinds * times
            ]
        except (TypeError, ValueError, AttributeError):
            message = f'expected [[["global", "local"], n]], got {shown_value(alternating.value)}'
            raise SpecError(config.problem(alternating.path, message)) from None
    first = min(n_layers, config.count("window_from", 0).value or 0)
    return [i >= first for i in range(n_layers)]


def _parallel(config: Config, _: Mapping[str, Any]) -> str:
    if not (config.switch(config.rules.parallel).value or config.switch("new_decoder").value):
        return ""
    return (
        "attention and MLP stand side by side and are priced one after the other: a framework that"
        " joins them has half the tensor-parallel traffic, so that real steps may be shorter"
    )


def _alibi(config: Config, _: Mapping[str, Any]) -> str:
    if not config.switch("alibi").value:
        return ""
    return "ALiBi is priced as rotary positions: as many parameters, nearly the same time"


def _soft_cap(config: Config, _: Mapping[str, Any]) -> str:
    if not config.look("soft_cap").value:
        return ""
    return (
        "attention scores are capped, priced as in a fused kernel that does it; without one the"
        " score matrix is stored, and memory and time are higher (model.flash_attention=false)"
    )


def _small_parts(config: Config, document: Mapping[str, Any]) -> str:
    """Name the parts that are left out because they are small.

    Layers with embeddings of their own (`per_layer`) are priced with all their norms.
    """
    rules, has_norms = config.rules, bool(document["model"].get("per_layer"))
    parts = [part for part in rules.extra if not (has_norms and part == POST_NORMS)]
    if config.switch(rules.qk_norm).value and not has_norms:
        parts.insert(0, "norms of queries and keys")
    qkv, out, mlp = (config.switch(name).value for name in rules.biases)
    uneven = [w for w, on in (("queries, keys and values", qkv), ("attention outputs", out)) if on]
    if uneven and not mlp:
        parts.insert(0, "biases of " + " and ".join(uneven))
    if not parts:
        return ""
    return f"ignored (under 0.1 % of parameters, mostly under 1 % of a step): {', '.join(parts)}"


def _mtp(config: Config, document: Mapping[str, Any]) -> str:
    n = document["model"].get("mtp_layers")
    if not n:
        return ""
    return (
        f"{n} module(s) of multi-token prediction are trained too; model.mtp_layers=0 leaves"
        " them out"
    )


def _sparse_beyond(config: Config, _: Mapping[str, Any]) -> str:
    """Say that attention of long sequences is priced in full where the file makes it sparse."""
    sparse = config.section.get("sparse_config")
    if not isinstance(sparse, Mapping) or "sparse_config" not in config.rules.ignored:
        return ""
    return (
        f"attention to blocks beyond {sparse.get('dense_len', 'some')} tokens (sparse_config) is"
        " priced in full: as many parameters, and an upper bound of the time of longer sequences"
    )


def _quantized(config: Config, _: Mapping[str, Any]) -> str:
    for section in (config.section, config.document.data):
        value = section.get("quantization_config")
        if isinstance(value, Mapping):
            method = value.get("quant_method")
            name = f" ({method})" if isinstance(method, str) else ""
            return f"weights of the file are quantized{name}: read as the model trained in bf16"
    return ""


_NOTES: tuple[Callable[[Config, Mapping[str, Any]], str], ...] = (
    _parallel,
    _alibi,
    _soft_cap,
    _small_parts,
    _mtp,
    _sparse_beyond,
    _quantized,
)
