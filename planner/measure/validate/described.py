"""From the entries of the models and hardware files to the plain types of the cost models.

Every function returns a value and the assumptions made on the way, in words, or raises `Skip`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from costmodels.layers.kinds import layer_run
from costmodels.shapes import Mamba2Shape, ModelShape
from hardware.catalogue import Catalogue, UnknownPartError
from hardware.parts import Accelerator, Link, Pool
from planner.units import GIB, shown_value

Entry = Mapping[str, Any]

GATED_VOCAB, GPT_VOCAB = 32000, 51200
"""Vocabularies where none is stated: Llama's for gated models, GPT-2's padded for the others."""
SAME_MEMORY_FRAC = 0.1
"""A stated size this close to the driver's figure is the number on the box: the latter counts."""
RACK_SCALE = 16
"""A scale-up domain above this reaches over nodes."""
_FAMILIES = (
    ("efa", ("efa",)),
    ("opa", ("omni-path", "omnipath", "opa")),
    ("roce", ("roce", "rdma", "ethernet")),
    ("ib", ("infiniband", "edr", "hdr", "ndr", "xdr", " ib")),
)
"""Family of catalogue links by words in the `inter` text."""


class Skip(Exception):
    """A row cannot be predicted; the text is the stable reason."""


def model_shape(
    name: str, entry: Entry, flash: bool, dropout: bool
) -> tuple[ModelShape, list[str]]:
    """Return the shape of a model; `flash` and `dropout` are those of the run.

    Experts are routed evenly, until the run says more (`routed_as`).
    """
    refuse_model(name, entry)
    if any(not entry.get(key) for key in ("layers", "hidden", "heads")):
        raise Skip("model shape not stated")
    messages: list[str] = []

    def filled(key: str, value: Any, why: str) -> Any:
        stated_value = entry.get(key)
        if stated_value is not None:
            return stated_value
        shown = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
        messages.append(f"{key} not stated: {shown} ({why})")
        return value

    hidden, heads = entry["hidden"], entry["heads"]
    latent = _latent(entry)
    kv_heads = heads if latent else filled("kv_heads", heads, "as many as heads")
    if not kv_heads or heads % kv_heads:
        raise Skip("heads do not divide over kv_heads")
    gated = bool(filled("gated", kv_heads != heads, "gated with grouped queries only"))
    ffn = -(-8 * hidden // (3 * 256)) * 256 if gated else 4 * hidden
    rope = gated or kv_heads != heads
    return ModelShape(
        name=name,
        layers=entry["layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=latent["qk_nope"] + latent["qk_rope"]
        if latent
        else filled("head_dim", hidden // heads, "hidden / heads"),
        ffn=filled("ffn", ffn, "8/3 hidden" if gated else "4 hidden"),
        gated=gated,
        vocab=filled("vocab", GATED_VOCAB if gated else GPT_VOCAB, "usual for its kind"),
        tied=bool(filled("tied", not rope, "as usual for its kind")),
        norm="rmsnorm" if rope else "layernorm",
        bias=bool(entry["bias"]) if entry.get("bias") is not None else not rope,
        positions="rope" if rope else "learned",
        flash_attention=flash,
        dropout=dropout,
        pads_vocab=True,
        mtp_layers=entry.get("mtp_layers") or 0,
        **latent,
        **_experts(entry),
        **_hybrid(name, entry, messages),
    ), messages


HYBRID_KINDS = {
    "M": "mamba2+none",
    "*": "attention+none",
    "-": "none+dense",
    "E": "none+moe",
}
"""Kinds of layers by their letter in Megatron-LM's `--hybrid-layer-pattern`."""
KNOWN_HYBRIDS = {
    "nemotron-h-56b": (
        "M-M-M-M*-" + 9 * "M-M-M-M-M*-" + "M-M-M-M-M-",
        {"heads": 256, "head_dim": 64, "groups": 8, "state": 256},
    )
}
"""Patterns and sizes of models whose entry says no more than that they are hybrids: Megatron-LM
examples/post_training/modelopt/conf/nvidia/Nemotron-H-56B-Base-8K.sh, and its defaults."""


def _hybrid(name: str, entry: Entry, messages: list[str]) -> dict[str, Any]:
    """Return the kinds of layers of a hybrid and the sizes of its mixers, nothing for others."""
    if not entry.get("hybrid"):
        return {}
    pattern, sizes = _hybrid_parts(name, entry)
    if len(pattern) != entry["layers"]:
        raise Skip("hybrid pattern of another length")
    if pattern is not entry["hybrid"]:
        messages.append("hybrid pattern not stated: that of Megatron-LM's example")
    runs = [(HYBRID_KINDS[letter], len(list(same))) for letter, same in groupby(pattern)]
    return {
        "layer_runs": tuple(layer_run(kind, count) for kind, count in runs),
        "mamba2": Mamba2Shape(**sizes, conv=4, chunk=128) if "M" in pattern else None,
    }


def _hybrid_parts(name: str, entry: Entry) -> tuple[str, dict[str, int]]:
    """Return the pattern of a hybrid and the sizes of its Mamba-2 layers; `Skip` without them."""
    stated, sizes = entry["hybrid"], entry.get("mamba") or {}
    keys = ("heads", "head_dim", "groups", "state")
    if isinstance(stated, str) and set(stated) <= set(HYBRID_KINDS):
        has_sizes = "M" not in stated or all(sizes.get(key) for key in keys)
        if has_sizes:
            return stated, {key: sizes[key] for key in keys if key in sizes}
    if stated is True and name in KNOWN_HYBRIDS:
        return KNOWN_HYBRIDS[name]
    raise Skip("hybrid layers")


_LATENT = {
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "qk_nope": ("qk_nope_head_dim",),
    "qk_rope": ("qk_rope_head_dim",),
    "v_head": ("v_head_dim",),
}
_EXPERTS = {
    "experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "topk": ("num_experts_per_tok",),
    "moe_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
    "every": ("moe_layer_freq",),
    "routing_groups": ("n_group",),
    "top_groups": ("topk_group",),
}
_REMARKS = ("note", "source")
NAMES_OF_LATENT = (*_LATENT, *(name for names in _LATENT.values() for name in names))
NAMES_OF_EXPERTS = (*_EXPERTS, *(name for names in _EXPERTS.values() for name in names))
"""Our names, and those of Hugging Face's config.json."""
COUNTS_OF_MAMBA = ("heads", "head_dim", "groups", "state")
COUNTS = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "mtp_layers"),
    *("gpus_per_node", "scaleup_domain"),
    *NAMES_OF_LATENT,
    *NAMES_OF_EXPERTS,
    *COUNTS_OF_MAMBA[2:],
)
"""Keys of entries, and of the mappings inside them, that hold a whole number; 0: not stated."""
AMOUNTS = (
    *("mem_gb", "bf16_peak_tflops", "fp8_peak_tflops", "hbm_gbs", "power_w"),
    *("intra_gbs", "inter_gbs"),
)
"""Keys that hold a number."""
FLAGS = ("gated", "tied", "bias")
"""Keys that hold true or false."""
_OF_HARDWARE = ("gpu", "gpus_per_node", "scaleup_domain", *AMOUNTS, "intra", "inter")
NESTED_KEYS: Mapping[str, tuple[str, ...]] = {
    "mla": (*NAMES_OF_LATENT, *_REMARKS),
    "moe": (*NAMES_OF_EXPERTS, *_REMARKS),
    "mamba": (*COUNTS_OF_MAMBA, *_REMARKS),
    "assumed": (*_OF_HARDWARE, *_REMARKS),
}
"""What may stand in a mapping inside an entry, by its key."""
ENTRY_KEYS = (
    *COUNTS[:8],
    *FLAGS,
    *NESTED_KEYS,
    *("lora", "hybrid", "params", "stated_gpu"),
    *_OF_HARDWARE,
    *_REMARKS,
)
"""What means something in an entry; other keys are named when a file is read."""


LARGEST = 10**9
"""Above any figure of an entry."""


def value_fault(key: str, value: Any) -> tuple[str, str] | None:
    """Return what is wrong with the value of a key, and what to write; None where nothing is.

    Null stands for what the source does not say.
    """
    if value is None:
        return None
    is_flag = isinstance(value, bool)
    is_whole = isinstance(value, int) and not is_flag and 0 <= value <= LARGEST
    is_amount = is_whole or (isinstance(value, float) and 0.0 <= value <= LARGEST)
    if key in COUNTS and not is_whole:
        return f"{shown_value(value)} is no whole number from 0 on", "such as 8"
    if key in AMOUNTS and not is_amount:
        return f"{shown_value(value)} is no number from 0 on", "a number without a unit"
    if key in FLAGS and not is_flag:
        return f"{shown_value(value)} is neither true nor false", "write true, false or nothing"
    return None


NATURAL_IMBALANCE = 1.1
"""Load of the busiest rank over the mean where tokens choose freely: 1.05 to 1.3 are usual with an
auxiliary loss."""


def _named(nested: Entry, aliases: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return a mapping of an entry under our names; ours win over Hugging Face's."""
    result = {}
    for key, others in aliases.items():
        stated = (nested.get(name) for name in (key, *others))
        result[key] = next((value for value in stated if value is not None), None)
    return result


def _latent(entry: Entry) -> dict[str, Any]:
    """Return the fields of latent attention, none without it."""
    if not entry.get("mla"):
        return {}
    latent = _named(entry["mla"], _LATENT)
    if any(latent[key] is None for key in latent if key != "q_rank"):
        raise Skip("latent attention not stated")
    return {key: value or 0 for key, value in latent.items()}


def _experts(entry: Entry) -> dict[str, Any]:
    """Return the fields of the experts, none for a dense model."""
    if not entry.get("moe"):
        return {}
    value = _named(entry["moe"], _EXPERTS)
    if any(not value[key] for key in ("experts", "topk", "moe_ffn")):
        raise Skip("expert shape not stated")
    if value["topk"] > value["experts"]:
        raise Skip("more experts a token than experts")
    n_shared = value["shared_experts"] or 0
    return {
        "n_experts": value["experts"],
        "top_k": value["topk"],
        "expert_ffn": value["moe_ffn"],
        "shared_ffn": value["shared_ffn"] or n_shared * value["moe_ffn"],
        "dense_layers": value["dense_layers"] or 0,
        "moe_every": value["every"] or 1,
        "n_groups": value["routing_groups"] or 1,
        "top_groups": value["top_groups"] or value["routing_groups"] or 1,
    }


def routed_as(shape: ModelShape, routing: str) -> tuple[ModelShape, list[str]]:
    """Return the shape with the load that the `moe_routing` cell of a run stands for."""
    kind = routing.lower()
    if not shape.n_experts or kind == "forced-balance":
        return shape, []
    if kind == "drop":
        return replace(shape, capacity_factor=1.0), ["capacity factor not stated: 1"]
    if kind in ("natural", "dropless"):
        message = f"imbalance not stated: {NATURAL_IMBALANCE:g} ({kind} routing)"
        return replace(shape, imbalance=NATURAL_IMBALANCE), [message]
    return shape, ["routing not stated: balanced"]


def refuse_model(name: str, entry: Entry) -> None:
    """Raise for a model of a kind that is not priced."""
    if entry.get("hybrid"):
        _hybrid_parts(name, entry)


def accelerator_of(entry: Entry, catalogue: Catalogue) -> Accelerator:
    """Return the catalogue accelerator of a hardware entry with what the entry states put in."""
    key = entry.get("gpu")
    if not key:
        raise Skip("accelerator not stated")
    if str(key).startswith("tpu"):
        raise Skip("TPU")
    try:
        part = catalogue.accelerator(str(key))
    except UnknownPartError:
        raise Skip("accelerator not in the catalogue") from None
    peaks = dict(part.peak_flops_per_s)
    half = entry.get("bf16_peak_tflops")
    peaks_tflops = {"bf16": half, "fp16": half, "fp8": entry.get("fp8_peak_tflops")}
    peaks |= {p: v * 1e12 for p, v in peaks_tflops.items() if v and p in peaks}
    part = replace(part, peak_flops_per_s=peaks)
    memory = (entry.get("mem_gb") or 0) * GIB
    if memory and abs(memory / part.memory_bytes - 1) > SAME_MEMORY_FRAC:
        part = replace(part, memory_bytes=memory)
    if entry.get("hbm_gbs"):
        part = replace(part, hbm_bytes_per_s=entry["hbm_gbs"] * 1e9)
    return part


LIMITED_SHARE = 0.7
"""Power limit over that of the part where a source says that there is one and not which: the set
point that a DGX B200 ships with, 700 of 1000 W."""


def _limited(
    part: Accelerator, entry: Entry, power_w: float | None, notes: list[str]
) -> Accelerator:
    """Return the part with its power limit: of the run, else of the entry or its note's words."""
    limit = power_w or _stated(entry, "power_w", notes)
    if not limit and "power limited" in str(entry.get("note") or "").lower():
        limit = LIMITED_SHARE * part.tdp_w
        notes.append(f"power limit not stated: {limit:g} W")
    return replace(part, power_limit_w=float(limit or 0.0))


def _stated(entry: Entry, key: str, notes: list[str]) -> Any:
    """Return a value of the entry, or the assumed one (which is then listed), or None."""
    if entry.get(key) is not None:
        return entry[key]
    value = (entry.get("assumed") or {}).get(key)
    if value is not None:
        notes.append(f"{key} not stated: {value:g} (reference platform)")
    return value


def pool_of(
    entry: Entry, n_devices: int, catalogue: Catalogue, power_w: float | None = None
) -> tuple[Pool, list[str]]:
    """Return the cluster of a run: enough nodes of the entry's accelerator, no memory margin.

    `power_w` is the power limit of a device that the run itself states, W.
    """
    messages: list[str] = []
    part = _limited(accelerator_of(entry, catalogue), entry, power_w, messages)
    node = _stated(entry, "gpus_per_node", messages)
    if not node:
        node = min(8, part.scale_up_domain)
        messages.append(f"gpus_per_node not stated: {node}")
    intra = _stated(entry, "intra_gbs", messages)
    if intra and abs(intra * 1e9 / part.scale_up_bytes_per_s - 1) > 0.01:
        part = _with_scale_up(part, intra * 1e9)
    nic, n_nics = _nic(entry, part, node, catalogue, messages)
    domain = _stated(entry, "scaleup_domain", messages) or part.scale_up_domain
    domain -= domain % node
    rack = domain > max(RACK_SCALE, node)
    return Pool(
        name="measured",
        accelerator=part,
        n_nodes=-(-n_devices // node),
        devices_per_node=node,
        scale_up_domain=domain if rack else node,
        scale_up=catalogue.link(part.scale_up_link),
        nics_per_node=n_nics,
        nic=nic,
        memory_margin_bytes=0.0,
        host=part.host,
    ), messages


def _with_scale_up(part: Accelerator, bytes_per_s: float) -> Accelerator:
    """Return `part` with another scale-up bandwidth; reachable rates change in proportion."""
    ratio = bytes_per_s / part.scale_up_bytes_per_s
    return replace(
        part,
        scale_up_bytes_per_s=bytes_per_s,
        ring_bytes_per_s=part.ring_bytes_per_s * ratio,
        in_switch_all_reduce_bytes_per_s=part.in_switch_all_reduce_bytes_per_s * ratio,
    )


def _nic(
    entry: Entry, part: Accelerator, node: int, catalogue: Catalogue, notes: list[str]
) -> tuple[Link, int]:
    """Return the network card and how many a node has; `inter_gbs` counts per accelerator.

    The family comes from the words of `inter`, else from the accelerator's usual platform; of a
    family the port whose speed the text names (`4 x 100 Gb`, not `400 Gb/s a node`), else the one
    nearest to the share of an accelerator. Ports together then have exactly the bandwidth that is
    stated.
    """
    usual = catalogue.typical_nics[part.name]
    text = f" {entry.get('inter') or ''}".lower()
    family = next((name for name, names in _FAMILIES if any(w in text for w in names)), "")
    share = (_stated(entry, "inter_gbs", notes) or 0) * 1e9
    if not share:
        share = catalogue.link(usual.link).bytes_per_s * usual.n_per_device
        notes.append(f"inter_gbs not stated: {share / 1e9:g} (reference platform)")
    if not family:
        family = usual.link.split("-")[0]
        notes.append(f"network not stated: {family} (reference platform)")
    ports = [x for x in catalogue.links.values() if x.name.startswith(f"{family}-")]
    named = re.search(r"(\d+)\s*gb(?![\w/ ]* (?:a|per) node)", text)
    wanted = float(named[1]) / 8 * 1e9 if named else share
    port = min(ports, key=lambda x: abs(x.bytes_per_s - wanted))
    n_nics = max(1, round(share * node / port.bytes_per_s))
    return replace(port, bytes_per_s=share * node / n_nics), n_nics
