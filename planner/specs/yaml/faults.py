"""From wrong files and pydantic's errors to problems with a line, a path and a proposal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from planner.errors import BadValue, InputProblem, SpecError
from planner.specs.schema import (
    ClusterFile,
    ModelFile,
    ModelSpec,
    PoolSpec,
    SpecFault,
    field_meaning,
)
from planner.specs.yaml.document import Document, KeyPath, close_names
from planner.units import shown_value

Spec = TypeVar("Spec", bound=BaseModel)
Kind = Literal["model", "cluster"]

KEYS: Mapping[Kind, tuple[str, ...]] = {
    "model": ("model", "training"),
    "cluster": ("pools", "fabric"),
}
"""Top-level sections that tell the two kinds of file apart."""

SYNONYMS: Mapping[str, str] = {
    # Hugging Face config.json
    "num_hidden_layers": "layers",
    "n_layer": "layers",
    "n_layers": "layers",
    "hidden_size": "hidden",
    "n_embd": "hidden",
    "d_model": "hidden",
    "num_attention_heads": "heads",
    "n_head": "heads",
    "n_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "n_kv_heads": "kv_heads",
    "intermediate_size": "ffn",
    "n_inner": "ffn",
    "d_ff": "ffn",
    "vocab_size": "vocab",
    "tie_word_embeddings": "tied",
    "max_position_embeddings": "max_positions",
    "n_positions": "max_positions",
    # Megatron-LM
    "num_layers": "layers",
    "num_query_groups": "kv_heads",
    "kv_channels": "head_dim",
    "ffn_hidden_size": "ffn",
    "swiglu": "gated",
    "padded_vocab_size": "padded_vocab",
    "make_vocab_size_divisible_by": "vocab_multiple",
    "normalization": "norm",
    "position_embedding_type": "positions",
    "use_flash_attn": "flash_attention",
    "seq_length": "seq_len",
    "sequence_length": "seq_len",
    "seq": "seq_len",
    "max_seq_len": "seq_len",
    "context_length": "seq_len",
    "global_batch_size": "global_batch",
    "gbs": "global_batch",
    "batch_size": "global_batch",
    "train_tokens": "tokens",
    "dtype": "precision",
    # experts, latent attention, multi-token prediction
    "num_local_experts": "experts",
    "num_experts": "experts",
    "n_experts": "experts",
    "n_routed_experts": "experts",
    "num_experts_per_tok": "topk",
    "moe_router_topk": "topk",
    "top_k": "topk",
    "moe_intermediate_size": "moe_ffn",
    "moe_ffn_hidden_size": "moe_ffn",
    "n_shared_experts": "shared_experts",
    "shared_expert_intermediate_size": "shared_ffn",
    "first_k_dense_replace": "dense_layers",
    "decoder_sparse_step": "every",
    "interleave_moe_layer_step": "every",
    "n_group": "routing_groups",
    "groups": "routing_groups",
    "topk_group": "top_groups",
    "q_lora_rank": "q_rank",
    "kv_lora_rank": "kv_rank",
    "qk_nope_head_dim": "qk_nope",
    "qk_rope_head_dim": "qk_rope",
    "v_head_dim": "v_head",
    "num_nextn_predict_layers": "mtp_layers",
    "mtp_num_layers": "mtp_layers",
    # clusters
    "gpu": "accelerator",
    "gpus": "accelerator",
    "device": "accelerator",
    "gpus_per_node": "accelerators_per_node",
    "devices_per_node": "accelerators_per_node",
    "n_nodes": "nodes",
    "num_nodes": "nodes",
    "node_count": "nodes",
    "nvlink_domain": "scale_up_domain",
    "nics": "nics_per_node",
    "nic_bandwidth": "nic_speed",
    "hbm": "memory",
    "peak": "peaks",
    "margin": "memory_margin",
    "usable_margin": "memory_margin",
    "instance_type": "instance",
    "machine_type": "instance",
    "platform": "instance",
    "vm_size": "instance",
    "idle_nodes": "free_nodes",
    "available_nodes": "free_nodes",
    "rail_optimised": "rail_optimized",
    "network": "fabric",
    "pool": "pools",
    "levels": "tiers",
}
"""Names of the same thing elsewhere."""

_ELSEWHERE = {
    "pools": "a cluster file",
    "fabric": "a cluster file",
    "model": "a model file",
    "training": "a model file",
}
_WRONG_TYPE = {
    "model_type": "a section with keys of its own",
    "model_attributes_type": "a section with keys of its own",
    "dict_type": "a mapping",
    "list_type": "a list (items that begin with `- `)",
}
_UNION_TAGS = ("name", "inline")
_RUN_TAGS = ("one-kind", "several-kinds")


_FIRST_SECTION: Mapping[Kind, tuple[str, frozenset[str]]] = {
    "model": ("model", frozenset(ModelSpec.model_fields) - {"name"}),
    "cluster": ("pools", frozenset(PoolSpec.model_fields) - {"name"}),
}


def document_kind(document: Document) -> Kind:
    """Return which of our two kinds of file a document looks like."""
    data = document.data if isinstance(document.data, Mapping) else {}
    marks = {*KEYS["cluster"], *_FIRST_SECTION["cluster"][1]}
    return "cluster" if marks.intersection(data) and "model" not in data else "model"


def is_sweep(data: object) -> bool:
    """Tell whether a document looks like a sweep file (`planner.sweeps`)."""
    return isinstance(data, Mapping) and bool({"vary", "together", "points", "where"} & set(data))


def expect(document: Document, kind: Kind) -> None:
    """Raise when the document is plainly something else than the kind of file asked for."""
    data, wanted = document.data, KEYS[kind]
    if not isinstance(data, Mapping):
        message = f"expected a {kind} file with `{wanted[0]}:` at the top, got {shown_value(data)}"
        raise SpecError(document.problem((), message, f"see examples/{kind}s/"))
    if is_sweep(data):
        message = f"this is a sweep file, and a {kind} file is needed here"
        raise SpecError(document.problem((), message, "planner sweep SWEEP.yaml runs it"))
    if any(key in data for key in wanted):
        return
    other: Kind = "cluster" if kind == "model" else "model"
    if any(key in data for key in KEYS[other]):
        message = f"this is a {other} file, and a {kind} file is needed here"
        raise SpecError(document.problem((), message, "give the model first, then the cluster"))
    section, fields = _FIRST_SECTION[kind]
    if fields.intersection(data):
        where = f"under `{section}:`" + (" as a list item" if section == "pools" else "")
        message = f"there is no `{section}:`, but keys that belong under it"
        raise SpecError(document.problem((), message, f"put them {where}; see examples/{kind}s/"))


def validated(schema: type[Spec], document: Document) -> Spec:
    """Check a document against a schema; raise one `SpecError` with all problems found."""
    try:
        return schema.model_validate(document.data)
    except ValidationError as error:
        problems = _problems(schema, document, error)
    problems.sort(key=lambda ranked: (ranked[0], ranked[1].line, ranked[1].column))
    raise SpecError([problem for _, problem in problems]) from None


def _problems(
    schema: type[BaseModel], document: Document, error: ValidationError
) -> list[tuple[int, InputProblem]]:
    """Return each problem with its rank: unknown keys, then missing ones, then wrong values."""
    items = error.errors(include_url=False)
    # A key under a wrong name is one mistake, not an unknown key and a missing one.
    renamed = {
        (*item["loc"][:-1], meant_key(str(item["loc"][-1]), section))
        for item in items
        if item["type"] == "extra_forbidden"
        and (section := _schema_at(schema, _real_path(item["loc"][:-1], document.data)))
    }
    return [
        _problem(schema, document, item)
        for item in items
        if item["type"] != "missing" or item["loc"] not in renamed
    ]


def meant_key(key: str, section: type[BaseModel]) -> str | None:
    """Return the key of a section that an unknown key most likely stands for."""
    plain = key.lower().lstrip("-").replace("-", "_")
    for candidate in (plain, SYNONYMS.get(plain)):
        if candidate in section.model_fields:
            return candidate
    return None


def _problem(
    schema: type[BaseModel], document: Document, error: Mapping[str, Any]
) -> tuple[int, InputProblem]:
    path, kind = _real_path(error["loc"], document.data), error["type"]
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        message, fix = _unknown_key(schema, path)
        return 0, document.problem(path, message, fix, at_key=True)
    if kind == "missing":
        model = _schema_at(schema, path[:-1])
        meaning = field_meaning(model, str(path[-1])) if model else None
        fix = f"add `{path[-1]}:` ({_first_words(meaning)})" if meaning else f"add {path[-1]}:"
        return 1, document.problem(path, "is missing", fix, at_key=True)
    value = shown_value(error["input"])
    if kind == "value_error" and isinstance(context.get("error"), BadValue):
        bad = context["error"]
        return 2, document.problem(path, bad.message, bad.hint, at_key=path[-1:] == ("[key]",))
    bounds = {"greater_than_equal": "ge", "greater_than": "gt", "less_than_equal": "le"}
    if kind in bounds:
        comparison = {"ge": "at least", "gt": "more than", "le": "at most"}[bounds[kind]]
        limit = context[bounds[kind]]
        return 2, document.problem(path, f"must be {comparison} {_limit(limit)}, got {value}")
    if kind in _WRONG_TYPE:
        return 2, document.problem(path, f"expected {_WRONG_TYPE[kind]}, got {value}")
    if kind in ("too_short", "too_long"):
        bound = "at least 1 item" if kind == "too_short" else f"at most {context['max_length']}"
        return 2, document.problem(path, f"expected {bound}, got {context['actual_length']}")
    return 2, document.problem(path, f"{error['msg']}, got {value}")


def _real_path(loc: tuple[str | int, ...], data: Any) -> KeyPath:
    """Return pydantic's location without the names of union members that it puts in between."""
    path: list[str | int] = []
    for i, part in enumerate(loc):
        union_member = part in _UNION_TAGS and path[-1:] == ["accelerator"]
        if union_member and (i + 1 < len(loc) or not _has(data, (*path, part))):
            continue
        if part in _RUN_TAGS and "layer_kinds" in path:
            continue
        # A single value read as a list of one has no index of its own.
        if isinstance(part, int) and not _has(data, (*path, part)):
            continue
        if part != "[key]":
            path.append(part)
    return tuple(path)


def _has(data: Any, path: KeyPath) -> bool:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


_REPEATING = ("encoder",)
"""Sections inside another whose keys stand elsewhere too, where they are meant more often."""


def _unknown_key(schema: type[BaseModel], path: KeyPath) -> tuple[str, str]:
    """Return the message and the proposal for a key that the schema does not know."""
    key, model = str(path[-1]), _schema_at(schema, path[:-1])
    fields = list(model.model_fields) if model else []
    allowed = f"keys here: {', '.join(fields)}"
    message = f"unknown key {shown_value(key)}"
    if len(path) == 1 and key in _ELSEWHERE and key not in fields:
        return f"{key!r} belongs in {_ELSEWHERE[key]}", "keep one kind per file"
    if model and (name := meant_key(key, model)):
        return message, f"did you mean `{name}`?"
    for section, inner in _sections(model) if model else ():
        if len(path) > 1 and section not in _REPEATING and (name := meant_key(key, inner)):
            return message, f"`{name}` belongs under `{'.'.join(map(str, path[:-1]))}.{section}:`"
    for section, other in _sections(schema):
        if section != path[0] and (name := meant_key(key, other)):
            return message, f"`{name}` belongs under `{section}:`"
    close = close_names(key, fields, 1)
    if len(path) == 1 and not close and schema is ClusterFile:
        found = paths_of_key(key, [ModelFile])
        if found:
            return message, f"did you mean `{found[0]}`, of the model?"
    return message, f"did you mean `{close[0]}`?" if close else allowed


def paths_of_key(key: str, schemas: Sequence[type[BaseModel]]) -> list[str]:
    """Return the paths below a section at which files of some schemas have a key.

    >>> from planner.specs.schema import ModelFile
    >>> paths_of_key("global_batch", [ModelFile])
    ['training.global_batch']
    """
    return [
        f"{section}.{name}"
        for schema in schemas
        for section, inner in _sections(schema)
        if section not in _REPEATING and (name := meant_key(key, inner))
    ]


def _sections(schema: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name in schema.model_fields:
        inner = _schema_at(schema, (name,))
        if inner is not None:
            yield name, inner


def _schema_at(schema: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """Return the schema of the section at a path.

    List indices, and names in a mapping of sections by name, stay in the same section.
    """
    current: type[BaseModel] | None = schema
    is_named = False
    for part in path:
        if current is None or isinstance(part, int):
            continue
        if is_named:
            is_named = False
            continue
        info = current.model_fields.get(part)
        current = next(_models_in(info.annotation), None) if info else None
        is_named = info is not None and get_origin(info.annotation) is dict
    return current


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections inside a field's type: itself, a list's items, a union's members."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for member in get_args(annotation):
        yield from _models_in(member)


def _first_words(meaning: str) -> str:
    return meaning.split(";")[0].split(". ")[0].rstrip(".")


def _limit(limit: float) -> str:
    return f"{limit:g}" if isinstance(limit, float) or limit >= 10**6 else str(limit)


def raise_faults(document: Document, faults: Iterable[SpecFault | None]) -> None:
    """Raise a `SpecError` with all faults that there are; nothing where there is none."""
    problems = [document.problem(f.path, f.message, f.fix) for f in faults if f is not None]
    if problems:
        raise SpecError(problems)
