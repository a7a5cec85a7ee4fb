"""From the document of a model to its shape and job, every default filled in."""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from costmodels.layers.kinds import layer_run
from costmodels.optimizers.records import MuonOptions
from costmodels.precision import SIXTEEN_BIT
from costmodels.shapes import (
    DENSE,
    MIXER_SECTIONS,
    MOE,
    SWITCHES,
    CrossShape,
    DiffusionShape,
    EncoderShape,
    LayerVariant,
    ModelShape,
    OperatorsShape,
    PerLayerShape,
    StreamsShape,
    TrainingJob,
    VisionShape,
)
from planner.errors import SpecError
from planner.specs.contradictions import model_faults
from planner.specs.inputs import ModelInput, default_name, import_notes
from planner.specs.schema import DetailsSpec, ModelFile, ModelSpec, MuonSpec, TrainingSpec
from planner.specs.search.section import section_faults
from planner.specs.sections.data import data_faults, data_notes, data_of
from planner.specs.sections.tuning import (
    reference_place,
    searched_section,
    tuning_document,
    tuning_faults,
    tuning_of,
)
from planner.specs.yaml.document import Document
from planner.specs.yaml.faults import raise_faults, validated


def read_model(document: Document) -> ModelInput:
    """Return a model from a document; `SpecError` for what is wrong with it."""
    spec = validated(ModelFile, document)
    raise_faults(document, model_faults(spec))
    if spec.search:
        raise_faults(document, section_faults(spec.search))
    model, job = spec.model, spec.training
    shape = _shape(model, model.name or default_name(document, "model"))
    raise_faults(document, [*tuning_faults(job, shape), *data_faults(job, shape)])
    training = _job(job, shape)
    canonical = {
        "model": canonical_model(shape, model.details),
        "training": {**training_document(training), "tokens": job.tokens},
    }
    if job.data:
        canonical["training"]["data"] = job.data.model_dump(exclude_none=True)
    return ModelInput(
        shape=shape,
        job=training,
        document=canonical,
        path=document.file,
        format=document.imported.format if document.imported else "a model file",
        notes=(
            *import_notes(document),
            *([PRECOMPUTED] if model.diffusion else []),
            *data_notes(job),
        ),
        details=model.details,
        search=searched_section(spec.search, training),
        listed=job.precisions if len(job.precisions) > 1 else (),
    )


def full_attention_every(local: Sequence[bool]) -> int | None:
    """Return n where every n-th layer alone is not local; 0: all are local; None: no n fits.

    >>> full_attention_every([True, False, True, False, True])
    2
    """
    if all(local):
        return 0
    n = list(local).index(False) + 1
    return n if list(local) == [(i + 1) % n > 0 for i in range(len(local))] else None


def sizes_as_stated(data: Mapping[str, Any]) -> tuple[ModelShape, TrainingJob] | None:
    """Return the model and job of a document whose sizes need not go together.

    For rules, which say what a framework refuses of sizes that no plan can have. None where a
    field is missing or is no such value at all.
    """
    try:
        spec = validated(ModelFile, Document(data))
    except SpecError:
        return None
    job = spec.training
    shape = _shape(spec.model, spec.model.name or "model")
    return shape, dataclasses.replace(_job(job, shape), tokens=0.0)


def _job(job: TrainingSpec, shape: ModelShape) -> TrainingJob:
    """Return the job in the first of its precisions."""
    precision = job.precisions[0]
    # What a precision does anyhow is not said: one job is one document.
    grads = job.grad_dtype or ""
    numbers = TrainingJob(
        job.seq_len,
        job.global_batch,
        precision,
        job.optimizer,
        job.tokens or 0.0,
        "" if grads == "fp32" and precision in SIXTEEN_BIT else grads,
        job.optimizer_states,
        job.fp8_param_gather,
        job.fp8_attention,
        job.fp8_output,
        job.bf16_layers,
        muon_options(job.muon),
        job.task,
        tuning_of(job, shape),
        data_of(job),
        reference_place(job) == "memory",
        reference_place(job) == "precomputed",
    )
    return named_job(numbers) if len(job.precisions) == 1 else numbers


def muon_options(muon: MuonSpec) -> MuonOptions:
    """Return the options of a `training.muon:` section."""
    return MuonOptions(**muon.model_dump())


def named_job(job: TrainingJob) -> TrainingJob:
    """Return a job by the name of its recipe where there is one: one job is one document."""
    if job.base_precision == job.precision:
        return job
    return dataclasses.replace(job, precision=job.base_precision, grad_dtype="")


PRECOMPUTED = (
    "model: latents and embeddings of text are taken as computed beforehand: VAE and text encoders"
    " take no time and no memory"
)
"""What answers say of every diffusion transformer."""
NUMERIC_FIELDS = (
    "grad_dtype",
    "optimizer_states",
    "fp8_param_gather",
    "fp8_attention",
    "fp8_output",
    "bf16_layers",
    "muon",
)


def training_document(job: TrainingJob) -> dict[str, Any]:
    """Return a job as a model file would state it.

    Numbers that are as the precision has them are left out: jobs of before keep their documents,
    and plans of them their ids.
    """
    out = dataclasses.asdict(job)
    for name in ("task", "tuning", "data", "has_reference", "has_precomputed_reference"):
        del out[name]
    plain = TrainingJob(job.seq_len, job.global_batch)
    for name in NUMERIC_FIELDS:
        if getattr(job, name) == getattr(plain, name):
            del out[name]
    if "bf16_layers" in out:
        out["bf16_layers"] = list(job.bf16_layers)
    if "muon" in out:
        usual = dataclasses.asdict(plain.muon)
        out["muon"] = {k: v for k, v in out["muon"].items() if v != usual[k]}
    return out if job.task == plain.task else out | tuning_document(job)


def _shape(model: ModelSpec, name: str) -> ModelShape:
    """Return the shape with every default filled in."""
    plain = {key: getattr(model, key) for key in _PLAIN_FIELDS}
    plain["name"] = name
    plain["kv_heads"] = model.kv_heads or model.heads
    plain["head_dim"] = model.head_dim or model.hidden // model.heads
    plain["ffn"] = model.ffn or 4 * model.hidden
    if model.value_dim not in (None, plain["head_dim"]):
        plain["v_head"] = model.value_dim
    if mla := model.mla:
        plain |= {key: getattr(mla, key) for key in _MLA_FIELDS}
        plain["head_dim"] = mla.qk_nope + mla.qk_rope
    if moe := model.moe:
        width = moe.moe_ffn or plain["ffn"]
        shared = moe.shared_experts * width if moe.shared_ffn is None else moe.shared_ffn
        plain |= {key: getattr(moe, name) for key, name in _MOE_FIELDS.items()}
        plain |= {"expert_ffn": width, "shared_ffn": shared}
        plain["ffn"] = model.ffn or width
        plain["top_groups"] = moe.top_groups or moe.routing_groups
    if model.layer_kinds:
        plain |= _stated_kinds([kind for run in model.layer_kinds for kind in run.kinds])
    used = {run.kind.partition("@")[2] for run in plain.get("layer_runs", ())}
    plain["variants"] = tuple(
        LayerVariant(name, tuple(one.sizes.items()))
        for name, one in sorted(model.variants.items())
        if name in used
    )
    for name, sizes in MIXER_SECTIONS.items():
        if section := getattr(model, name):
            plain[name] = sizes(**dict(section))
    if model.encoder:
        sizes_of = EncoderShape(**dict(model.encoder))
        if not sizes_of.head_dim and (sizes_of.hidden or sizes_of.heads):
            width, heads = sizes_of.hidden or model.hidden, sizes_of.heads or model.heads
            sizes_of = dataclasses.replace(sizes_of, head_dim=model.head_dim or width // heads)
        plain["encoder"] = sizes_of
        plain.setdefault("cross", CrossShape(sizes_of.seq_len, sizes_of.hidden or model.hidden))
    if model.operators:
        plain["operators"] = OperatorsShape(**dict(model.operators))
    if model.residual_streams:
        plain["residual_streams"] = StreamsShape(**dict(model.residual_streams))
    if model.per_layer:
        plain["per_layer"] = PerLayerShape(**dict(model.per_layer))
    if model.vision:
        vision = model.vision.model_dump()
        plain["vision"] = VisionShape(**{**vision, "projector": tuple(vision["projector"])})
    if model.diffusion:
        plain["diffusion"] = DiffusionShape(**model.diffusion.model_dump())
    return ModelShape(**plain)


def _stated_kinds(kinds: list[str]) -> dict[str, Any]:
    """Return the fields of a shape that say the kinds of its layers, from that of each.

    Dense layers alone, and expert layers that come every n-th after the first dense ones, are said
    as without `layer_kinds`: the same model is the same document.
    """
    if set(kinds) <= {DENSE}:
        return {}
    first = kinds.index(MOE) if MOE in kinds else len(kinds)
    for every in range(1, first + 2) if set(kinds) <= {DENSE, MOE} else ():
        dense = first + 1 - every
        pattern = [i >= dense and (i - dense + 1) % every == 0 for i in range(len(kinds))]
        if pattern == [kind == MOE for kind in kinds]:
            return {"dense_layers": dense, "moe_every": every}
    merged = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    return {"layer_runs": tuple(layer_run(kind, count) for kind, count in merged)}


_MLA_FIELDS = ("q_rank", "kv_rank", "qk_nope", "qk_rope", "v_head")


_MOE_FIELDS = {
    "n_experts": "experts",
    "top_k": "topk",
    "expert_ffn": "moe_ffn",
    "moe_latent": "latent",
    "shared_ffn": "shared_ffn",
    "dense_layers": "dense_layers",
    "moe_every": "every",
    "capacity_factor": "capacity_factor",
    "imbalance": "imbalance",
    "forced_balance": "forced_balance",
    "n_groups": "routing_groups",
    "top_groups": "top_groups",
}
"""Fields of a shape by their name in `model.moe`."""


_NOT_PLAIN = (
    "layer_runs",
    "pads_vocab",
    "encoder",
    "operators",
    "vision",
    "diffusion",
    "per_layer",
    "residual_streams",
    "variants",
    "kv_shared",
    "keys_as_values",
    "reused",
)
_PLAIN_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(ModelShape)
    if field.name not in {*_MLA_FIELDS, *_MOE_FIELDS, *MIXER_SECTIONS, *_NOT_PLAIN}
)


def _variant_document(variant: LayerVariant) -> dict[str, Any]:
    """Return a variant as a model file would state it."""
    return {key: bool(n) if key in SWITCHES else n for key, n in variant.sizes}


_REST = (("full_gates", False), ("block", 1))
"""Sizes of mixers that are named only where they are others."""


def canonical_model(shape: ModelShape, details: DetailsSpec) -> dict[str, Any]:
    """Return the model as a model file would state it; only the sections that it uses."""
    out = {key: getattr(shape, key) for key in _PLAIN_FIELDS}
    # Named only where set: the identity of a plan does not change with what it does not use.
    if not shape.mtp_layers:
        del out["mtp_layers"]
    if not shape.attention_gate:
        del out["attention_gate"]
    if not shape.head_transform:
        del out["head_transform"]
    if shape.latent:
        del out["kv_heads"], out["head_dim"]
        out["mla"] = {key: getattr(shape, key) for key in _MLA_FIELDS}
    elif shape.v_head:
        out["value_dim"] = shape.v_head
    if shape.n_experts:
        out["moe"] = {name: getattr(shape, key) for key, name in _MOE_FIELDS.items()}
        if not shape.moe_latent:
            del out["moe"]["latent"]
    if shape.layer_runs:
        out["layer_kinds"] = [{"kind": run.kind, "count": run.count} for run in shape.layer_runs]
    if shape.variants:
        out["variants"] = {x.name: _variant_document(x) for x in shape.variants}
    for name in MIXER_SECTIONS:
        if sizes := getattr(shape, name):
            out[name] = {k: x for k, x in dataclasses.asdict(sizes).items() if (k, x) not in _REST}
    if shape.residual_streams:
        out["residual_streams"] = dataclasses.asdict(shape.residual_streams)
    if shape.encoder:
        out["encoder"] = dataclasses.asdict(shape.encoder)
    if shape.operators:
        out["operators"] = dataclasses.asdict(shape.operators)
    if shape.per_layer:
        plain = PerLayerShape(shape.per_layer.width, shape.per_layer.vocab)
        sizes = dataclasses.asdict(shape.per_layer)
        out["per_layer"] = {
            key: size
            for key, size in sizes.items()
            if key in ("width", "vocab") or size != getattr(plain, key)
        }
    if shape.vision:
        vision = dataclasses.asdict(shape.vision)
        out["vision"] = {**vision, "projector": list(shape.vision.projector)}
    if shape.diffusion:
        out["diffusion"] = dataclasses.asdict(shape.diffusion)
    if section := details.stated():
        out["details"] = section
    return out
