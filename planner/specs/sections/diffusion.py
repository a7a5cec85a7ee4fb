"""What contradicts in the `model.diffusion:` section of a model file."""

from costmodels.layers.kinds import LAYER_KINDS, MIXERS
from costmodels.shapes import DiffusionShape
from planner.specs.schema import DiffusionSpec, ModelSpec, SpecFault, TrainingSpec

SECTION = "diffusion"


def diffusion_faults(model: ModelSpec, job: TrainingSpec) -> list[SpecFault]:
    """Return what is wrong between latents, layers and the job of a diffusion transformer."""
    if model.diffusion is None:
        if model.vocab:
            return []
        message = "a model of tokens needs a vocabulary"
        return [SpecFault(("model", "vocab"), message, "give its tokens, before padding")]
    if faults := _grid_faults(model.diffusion):
        return faults
    return [*_layer_faults(model), *_other_faults(model), *_sequence_faults(model, job)]


def _grid_faults(spec: DiffusionSpec) -> list[SpecFault]:
    """Return which sides and frames are no whole number of patches."""
    side, faults = spec.vae_factor * spec.patch, []
    for name in ("height", "width"):
        pixels = getattr(spec, name)
        if pixels % side:
            near = max(side, round(pixels / side) * side)
            faults.append(
                _fault(
                    name,
                    f"{pixels} pixels are no multiple of {side}, the side of a patch",
                    f"write {near}",
                )
            )
    if (spec.frames - 1) % spec.vae_frames:
        near = round((spec.frames - 1) / spec.vae_frames) * spec.vae_frames + 1
        message = f"{spec.frames} frames are not 1 and a multiple of {spec.vae_frames}"
        faults.append(_fault("frames", message, f"write {near}"))
    elif ((spec.frames - 1) // spec.vae_frames + 1) % spec.patch_frames:
        latents = (spec.frames - 1) // spec.vae_frames + 1
        message = f"{latents} frames of latents are no multiple of patch_frames"
        faults.append(_fault("frames", message, f"change frames or {spec.patch_frames}"))
    return faults


def _layer_faults(model: ModelSpec) -> list[SpecFault]:
    """Return which layers do not go with the section, and which need more of it."""
    spec, kinds = model.diffusion, _kinds(model)
    assert spec is not None
    others = sorted({kind for kind in kinds if MIXERS_OF.get(kind) != SECTION})
    faults = []
    if others:
        message = f"layers of kind {', '.join(others)} are none of a diffusion transformer"
        fix = "name adaln, double-stream, double-stream-last or single-stream in `layer_kinds`"
        faults.append(SpecFault(("model", "layer_kinds"), message, fix))
    joint = any(kind.startswith("double-stream") for kind in kinds)
    if (joint or "single-stream" in kinds) and (spec.cross or spec.modulation == "table"):
        name = "cross" if spec.cross else "modulation"
        message = "double-stream and single-stream layers have neither cross attention nor tables"
        faults.append(_fault(name, message, "leave it out, or name adaln layers"))
    if (joint or spec.cross) and not spec.text_tokens:
        faults.append(_fault("text_tokens", "such layers attend to text", "give its tokens"))
    if spec.cross_norm and not spec.cross:
        faults.append(_fault("cross_norm", "stands without `cross`", "leave it out"))
    if spec.modulation == "shared" and "adaln" in kinds:
        message = "adaln layers have a matrix each (`block`) or a table"
        faults.append(_fault("modulation", message, "write block or table"))
    return faults


def _other_faults(model: ModelSpec) -> list[SpecFault]:
    """Return which fields of language models stand beside latents."""
    faults = []
    for name in ("vocab", "tied", "moe", "mla", "vision", "mtp_layers", "head_transform"):
        if getattr(model, name):
            message = "a diffusion transformer has none"
            faults.append(SpecFault(("model", name), message, f"leave {name} out"))
    checks = (
        ("kv_heads", (model.kv_heads or model.heads) != model.heads, "as many as heads"),
        ("flash_attention", not model.flash_attention, "true: scores are not priced here"),
        ("dropout", model.dropout, "false: its masks are not priced here"),
        ("ffn", model.gated and model.ffn is None, "the inner width of the MLP"),
        ("attention_gate", model.attention_gate, "false: no such layer has it"),
        ("positions", model.positions != "rope", "rope: tables of sines have no parameters"),
    )
    faults += [
        SpecFault(("model", name), "does not go with a diffusion transformer", f"write {fix}")
        for name, failed, fix in checks
        if failed
    ]
    return faults


def _sequence_faults(model: ModelSpec, job: TrainingSpec) -> list[SpecFault]:
    """Return whether the sequence is another than the resolution makes."""
    assert model.diffusion is not None
    tokens = DiffusionShape(**model.diffusion.model_dump()).tokens
    if job.seq_len == tokens:
        return []
    message = f"{job.seq_len} tokens, but latents and text make {tokens}"
    return [SpecFault(("training", "seq_len"), message, f"write {tokens}, or leave it out")]


def _kinds(model: ModelSpec) -> list[str]:
    runs = model.layer_kinds or []
    return [kind for run in runs for kind in run.kinds] or ["dense"]


def _fault(name: str, message: str, fix: str) -> SpecFault:
    return SpecFault(("model", SECTION, name), message, fix)


MIXERS_OF = {
    name: MIXERS[kind.mixer].section for name, kind in LAYER_KINDS.items() if kind.mixer in MIXERS
}
"""Sections that kinds of layers need."""
