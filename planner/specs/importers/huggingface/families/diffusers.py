"""Diffusion transformers of diffusers (`transformer/config.json`) as model files.

A class of diffusers is one record: its defaults, the sizes that follow, what must be as it is
priced. Resolution, frames and length of the text are no part of such a file: they are the
pipeline's defaults until the user says others (`model.diffusion.height`).
Sources: diffusers 0.42.1, models/transformers/*.py and pipelines/*.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.errors import SpecError
from planner.specs.importers.imported import Imported, Origin
from planner.specs.yaml.document import Document
from planner.units import shown_value

CLASS = "_class_name"
BATCH = 256
"""Samples of a step, which no such file says: DiT (arXiv 2212.09748, section 4)."""
_PASSED_OVER = """
    _class_name _diffusers_version _name_or_path axes_dims_rope rope_theta rope_axes_dim
    eps norm_eps rope_max_seq_len freq_shift flip_sin_to_cos spatial_interpolation_scale
    temporal_interpolation_scale temporal_compression_ratio
    use_rotary_positional_embeddings use_learned_positional_embeddings interpolation_scale
    norm_num_groups num_embeds_ada_norm upcast_attention timestep_activation_fn
    activation_fn pos_embed_max_size dropout quantization_config timestep_scale_multiplier
    use_layer3d_rope sample_size sample_width sample_height sample_frames
    max_text_seq_length
"""
_HARMLESS = frozenset(_PASSED_OVER.split())
"""Keys that change no size, or are read apart."""

Value = tuple[object, str]
Fields = dict[str, Value]
"""Fields of a section, each with where it comes from."""


@dataclass(frozen=True, slots=True)
class _Clip:
    """What a pipeline makes where the user does not say."""

    height: int
    width: int
    frames: int
    text_tokens: int


@dataclass(frozen=True, slots=True)
class _Class:
    """A class of diffusers."""

    defaults: Mapping[str, Any]
    """Of its arguments."""
    layers: Callable[["_Config"], list[dict[str, Any]]]
    """Entries of `layer_kinds`."""
    model: Callable[["_Config"], Fields]
    """Fields of `model` beside the widths."""
    latents: Callable[["_Config"], Fields]
    """Fields of `model.diffusion`."""
    clip: Callable[["_Config"], _Clip]
    neutral: Mapping[str, object] = field(default_factory=dict)
    """Keys whose value must be this one: another is not priced."""


@dataclass(frozen=True, slots=True)
class _Config:
    """One configuration, its class's defaults beneath."""

    document: Document
    defaults: Mapping[str, Any]

    def raw(self, key: str) -> Any:
        """Return a value, stated or by default."""
        return self.document.data.get(key, self.defaults.get(key))

    def origin(self, key: str) -> str:
        """Say where it comes from."""
        return key if key in self.document.data else f"{key}, default of the class"

    def count(self, key: str) -> int:
        """Return a whole number from 1 on; `SpecError` for anything else."""
        value = self.raw(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        message = f"{key}: expected a whole number from 1 on, got {shown_value(value)}"
        path = (key,) if key in self.document.data else ()
        raise SpecError(self.document.problem(path, message))

    def took(self, key: str) -> Value:
        """Return a whole number with its origin."""
        return self.count(key), self.origin(key)

    def part(self, key: str, over: int) -> Value:
        """Return a whole number over a divisor."""
        whole = self.count(key)
        if whole % over:
            message = f"{key} {whole} is no multiple of {over}"
            raise SpecError(self.document.problem((key,), message))
        return whole // over, f"{self.origin(key)} / {over}"

    def switch(self, key: str) -> Value:
        """Return a switch with its origin."""
        return bool(self.raw(key)), self.origin(key)

    @property
    def hidden(self) -> int:
        """Width of the model."""
        return self.count("num_attention_heads") * self.count("attention_head_dim")

    def kinds(self, *pairs: tuple[str, int]) -> list[dict[str, Any]]:
        """Return entries of `layer_kinds`, those without layers left out."""
        return [{"kind": kind, "count": count} for kind, count in pairs if count]


def _always(value: object) -> Value:
    return value, "as in every model of the class"


def _plain(config: _Config, ratio: float = 4.0) -> Fields:
    """Return a plain MLP of some times the width, and biases."""
    width = round(config.hidden * ratio)
    return {
        "ffn": (width, f"{ratio:g} * heads * head_dim"),
        "gated": _always(False),
        "bias": _always(True),
    }


def _packed(config: _Config) -> Fields:
    """Return latents that come in squares of two by two."""
    outputs = config.raw("out_channels") or config.count("in_channels")
    sizes: Fields = {
        "channels": config.part("in_channels", 4),
        "patch": (2, "latents come in squares of two by two"),
        "text_width": config.took("joint_attention_dim"),
        "qk_norm": _always("head"),
    }
    if outputs != config.count("in_channels"):
        sizes["out_channels"] = config.part("out_channels", 4)
    return sizes


def _flux(config: _Config) -> Fields:
    return {
        **_packed(config),
        "pooled_width": config.took("pooled_projection_dim"),
        "guidance": config.switch("guidance_embeds"),
    }


def _flux2(config: _Config) -> Fields:
    return {
        **_packed(config),
        "modulation": _always("shared"),
        "time_width": config.took("timestep_guidance_channels"),
        "guidance": config.switch("guidance_embeds"),
    }


def _flux2_model(config: _Config) -> Fields:
    ratio = float(config.raw("mlp_ratio"))
    width = (round(config.hidden * ratio), f"{config.origin('mlp_ratio')} * heads * head_dim")
    return {"ffn": width, "gated": _always(True), "bias": _always(False)}


def _qwen(config: _Config) -> Fields:
    inputs = config.count("in_channels")
    outputs = 4 * int(config.raw("out_channels") or inputs)
    sizes = {
        "channels": config.part("in_channels", 4),
        "patch": (2, "latents come in squares of two by two"),
        "text_width": config.took("joint_attention_dim"),
        "text_norm": _always(True),
        "qk_norm": _always("head-unfused"),
    }
    if outputs != inputs:
        sizes["out_channels"] = config.took("out_channels")
    return sizes


def _unpacked(config: _Config) -> Fields:
    """Return latents that a convolution cuts into patches."""
    sizes: Fields = {
        "channels": config.took("in_channels"),
        "patch": config.took("patch_size"),
    }
    if (config.raw("out_channels") or config.raw("in_channels")) != config.raw("in_channels"):
        sizes["out_channels"] = config.took("out_channels")
    return sizes


def _sd3(config: _Config) -> Fields:
    normed = config.raw("qk_norm")
    return {
        **_unpacked(config),
        "text_width": config.took("joint_attention_dim"),
        "pooled_width": config.took("pooled_projection_dim"),
        "qk_norm": ("head-unfused" if normed else "none", config.origin("qk_norm")),
        "heads_first": _always(True),
    }


def _hunyuan(config: _Config) -> Fields:
    return {
        **_unpacked(config),
        "vae_frames": _always(4),
        "patch_frames": config.took("patch_size_t"),
        "text_width": config.took("text_embed_dim"),
        "pooled_width": config.took("pooled_projection_dim"),
        "guidance": config.switch("guidance_embeds"),
        "refiner_layers": config.took("num_refiner_layers"),
        "qk_norm": _always("head-unfused"),
    }


def _wan(config: _Config) -> Fields:
    patch = config.raw("patch_size")
    is_square = isinstance(patch, list | tuple) and len(patch) == 3 and patch[1] == patch[2]
    if not is_square or not all(type(x) is int and x > 0 for x in patch):
        message = f"expected frames, height and width, the last two alike: {shown_value(patch)}"
        raise SpecError(config.document.problem(("patch_size",), message))
    sizes: Fields = {
        "channels": config.took("in_channels"),
        "patch": (patch[1], config.origin("patch_size")),
        "patch_frames": (patch[0], config.origin("patch_size")),
        "vae_factor": (_wan_vae(config), f"VAE of {config.raw('out_channels')} channels"),
        "vae_frames": _always(4),
        "cross": _always(True),
        "modulation": _always("table"),
        "time_width": config.took("freq_dim"),
        "text_width": config.took("text_dim"),
        "text_layers": _always(2),
        "qk_norm": _always("width"),
        "cross_norm": config.switch("cross_attn_norm"),
        "wide_norms": _always(True),
    }
    if config.raw("out_channels") != config.raw("in_channels"):
        sizes["out_channels"] = config.took("out_channels")
    return sizes


def _wan_vae(config: _Config) -> int:
    """Return the pixels of a latent: the VAE of Wan 2.2 with 48 channels has 16."""
    return 16 if config.count("out_channels") == 48 else 8


def _wan_clip(config: _Config) -> _Clip:
    return _Clip(704, 1280, 121, 512) if _wan_vae(config) == 16 else _Clip(480, 832, 81, 512)


def _wan_model(config: _Config) -> Fields:
    return {"ffn": config.took("ffn_dim"), "gated": _always(False), "bias": _always(True)}


def _ltx(config: _Config) -> Fields:
    return {
        **_unpacked(config),
        "vae_factor": _always(32),
        "vae_frames": _always(8),
        "patch_frames": config.took("patch_size_t"),
        "cross": _always(True),
        "modulation": _always("table"),
        "text_width": config.took("caption_channels"),
        "text_layers": _always(2),
        "qk_norm": _always("width"),
    }


def _pixart(config: _Config) -> Fields:
    return {
        **_unpacked(config),
        "cross": _always(True),
        "modulation": _always("table"),
        "text_width": config.took("caption_channels"),
        "text_layers": _always(2),
    }


def _cogvideo(config: _Config) -> Fields:
    return {
        **_unpacked(config),
        "vae_frames": _always(4),
        "condition": config.took("time_embed_dim"),
        "time_width": (config.hidden, "heads * head_dim"),
        "text_width": config.took("text_embed_dim"),
        "qk_norm": _always("head-layernorm"),
        "affine": config.switch("norm_elementwise_affine"),
        "heads_first": _always(True),
    }


def _cogvideo_clip(config: _Config) -> _Clip:
    height, width = (8 * config.count(f"sample_{side}") for side in ("height", "width"))
    return _Clip(height, width, config.count("sample_frames"), config.count("max_text_seq_length"))


def _two_and_one(config: _Config) -> list[dict[str, Any]]:
    single = config.count("num_single_layers")
    return config.kinds(("double-stream", config.count("num_layers")), ("single-stream", single))


def _sd3_layers(config: _Config) -> list[dict[str, Any]]:
    n = config.count("num_layers")
    return config.kinds(("double-stream", n - 1), ("double-stream-last", 1))


def _adaln(config: _Config) -> list[dict[str, Any]]:
    return config.kinds(("adaln", config.count("num_layers")))


def _square(side: int, text_tokens: int) -> Callable[[_Config], _Clip]:
    return lambda config: _Clip(side, side, 1, text_tokens)


def _sampled(text_tokens: int) -> Callable[[_Config], _Clip]:
    """Return images of the side that the file says, in latents of eight pixels."""

    def clip(config: _Config) -> _Clip:
        side = 8 * config.count("sample_size")
        return _Clip(side, side, 1, text_tokens)

    return clip


_HEADS = {"num_attention_heads": 24, "attention_head_dim": 128}
CLASSES: Mapping[str, _Class] = {
    "FluxTransformer2DModel": _Class(
        defaults={
            **_HEADS,
            "patch_size": 1,
            "in_channels": 64,
            "num_layers": 19,
            "num_single_layers": 38,
            "joint_attention_dim": 4096,
            "pooled_projection_dim": 768,
            "guidance_embeds": False,
        },
        layers=_two_and_one,
        model=_plain,
        latents=_flux,
        clip=_square(1024, 512),
        neutral={"patch_size": 1},
    ),
    "Flux2Transformer2DModel": _Class(
        defaults={
            "num_attention_heads": 48,
            "attention_head_dim": 128,
            "patch_size": 1,
            "in_channels": 128,
            "num_layers": 8,
            "num_single_layers": 48,
            "joint_attention_dim": 15360,
            "timestep_guidance_channels": 256,
            "mlp_ratio": 3.0,
            "guidance_embeds": True,
        },
        layers=_two_and_one,
        model=_flux2_model,
        latents=_flux2,
        clip=_square(1024, 512),
        neutral={"patch_size": 1},
    ),
    "QwenImageTransformer2DModel": _Class(
        defaults={
            **_HEADS,
            "patch_size": 2,
            "in_channels": 64,
            "out_channels": 16,
            "num_layers": 60,
            "joint_attention_dim": 3584,
            "guidance_embeds": False,
            "zero_cond_t": False,
            "use_additional_t_cond": False,
        },
        layers=lambda config: config.kinds(("double-stream", config.count("num_layers"))),
        model=_plain,
        latents=_qwen,
        clip=_square(1024, 512),
        neutral={
            "patch_size": 2,
            "zero_cond_t": False,
            "use_additional_t_cond": False,
            "pooled_projection_dim": 768,
        },
    ),
    "SD3Transformer2DModel": _Class(
        defaults={
            "num_attention_heads": 18,
            "attention_head_dim": 64,
            "sample_size": 128,
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 18,
            "joint_attention_dim": 4096,
            "caption_projection_dim": 1152,
            "pooled_projection_dim": 2048,
            "qk_norm": None,
            "dual_attention_layers": (),
        },
        layers=_sd3_layers,
        model=_plain,
        latents=_sd3,
        clip=_sampled(333),
        neutral={"dual_attention_layers": ()},
    ),
    "HunyuanVideoTransformer3DModel": _Class(
        defaults={
            **_HEADS,
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 20,
            "num_single_layers": 40,
            "num_refiner_layers": 2,
            "mlp_ratio": 4.0,
            "patch_size": 2,
            "patch_size_t": 1,
            "qk_norm": "rms_norm",
            "guidance_embeds": True,
            "text_embed_dim": 4096,
            "pooled_projection_dim": 768,
            "image_condition_type": None,
        },
        layers=_two_and_one,
        model=lambda config: _plain(config, float(config.raw("mlp_ratio"))),
        latents=_hunyuan,
        clip=lambda config: _Clip(720, 1280, 129, 256),
        neutral={"image_condition_type": None, "qk_norm": "rms_norm"},
    ),
    "WanTransformer3DModel": _Class(
        defaults={
            "num_attention_heads": 40,
            "attention_head_dim": 128,
            "patch_size": [1, 2, 2],
            "in_channels": 16,
            "out_channels": 16,
            "text_dim": 4096,
            "freq_dim": 256,
            "ffn_dim": 13824,
            "num_layers": 40,
            "cross_attn_norm": True,
            "qk_norm": "rms_norm_across_heads",
            "image_dim": None,
            "added_kv_proj_dim": None,
            "pos_embed_seq_len": None,
        },
        layers=_adaln,
        model=_wan_model,
        latents=_wan,
        clip=_wan_clip,
        neutral={
            "image_dim": None,
            "added_kv_proj_dim": None,
            "pos_embed_seq_len": None,
            "qk_norm": "rms_norm_across_heads",
        },
    ),
    "LTXVideoTransformer3DModel": _Class(
        defaults={
            "num_attention_heads": 32,
            "attention_head_dim": 64,
            "in_channels": 128,
            "out_channels": 128,
            "patch_size": 1,
            "patch_size_t": 1,
            "cross_attention_dim": 2048,
            "num_layers": 28,
            "qk_norm": "rms_norm_across_heads",
            "norm_elementwise_affine": False,
            "caption_channels": 4096,
            "attention_bias": True,
            "attention_out_bias": True,
        },
        layers=_adaln,
        model=lambda config: {**_plain(config), "norm": _always("rmsnorm")},
        latents=_ltx,
        clip=lambda config: _Clip(512, 704, 161, 128),
        neutral={
            "qk_norm": "rms_norm_across_heads",
            "norm_elementwise_affine": False,
            "attention_bias": True,
            "attention_out_bias": True,
        },
    ),
    "CogVideoXTransformer3DModel": _Class(
        defaults={
            "num_attention_heads": 30,
            "attention_head_dim": 64,
            "in_channels": 16,
            "out_channels": 16,
            "time_embed_dim": 512,
            "ofs_embed_dim": None,
            "text_embed_dim": 4096,
            "num_layers": 30,
            "attention_bias": True,
            "sample_width": 90,
            "sample_height": 60,
            "sample_frames": 49,
            "patch_size": 2,
            "patch_size_t": None,
            "max_text_seq_length": 226,
            "norm_elementwise_affine": True,
            "patch_bias": True,
        },
        layers=_adaln,
        model=_plain,
        latents=_cogvideo,
        clip=_cogvideo_clip,
        neutral={
            "ofs_embed_dim": None,
            "patch_size_t": None,
            "attention_bias": True,
            "patch_bias": True,
        },
    ),
    "PixArtTransformer2DModel": _Class(
        defaults={
            "num_attention_heads": 16,
            "attention_head_dim": 72,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 28,
            "cross_attention_dim": 1152,
            "attention_bias": True,
            "sample_size": 128,
            "patch_size": 2,
            "norm_type": "ada_norm_single",
            "norm_elementwise_affine": False,
            "caption_channels": None,
            "use_additional_conditions": None,
            "attention_type": "default",
        },
        layers=_adaln,
        model=_plain,
        latents=_pixart,
        clip=_sampled(120),
        neutral={
            "attention_bias": True,
            "norm_type": "ada_norm_single",
            "norm_elementwise_affine": False,
            "attention_type": "default",
        },
    ),
}
"""By `_class_name`."""
_WIDTH_KEYS = ("caption_projection_dim", "cross_attention_dim")
"""Keys that must be the width of the model."""


def is_diffusers(data: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is one of diffusers."""
    return CLASS in data and "_diffusers_version" in data


def read_diffusers(document: Document, overrides: Mapping[str, object]) -> Imported:
    """Return the model file of a diffusion transformer; `SpecError` for what is not priced.

    `overrides` are fields that the user states by path; of resolution, frames and text the rest
    is assumed to be the pipeline's.
    """
    name = document.data[CLASS]
    if not isinstance(name, str) or name not in CLASSES:
        message = f"{shown_value(name)} of diffusers: its layers are not priced"
        hint = f"priced: {', '.join(CLASSES)}; or write the `diffusion` section of a model file"
        raise SpecError(document.problem((CLASS,), message, hint))
    of_class = CLASSES[name]
    config = _Config(document, of_class.defaults)
    _check(config, of_class)
    runs = of_class.layers(config)
    model: Fields = {
        "name": (name.removesuffix("Model"), CLASS),
        "layers": (sum(run["count"] for run in runs), "the layers of all kinds"),
        "hidden": (config.hidden, "heads * head_dim"),
        "heads": config.took("num_attention_heads"),
        "head_dim": config.took("attention_head_dim"),
        "norm": _always("layernorm"),
        **of_class.model(config),
        "layer_kinds": (runs, f"blocks of {name}"),
    }
    stated = {x.removeprefix("model.diffusion."): y for x, y in overrides.items()}
    clip = of_class.clip(config)
    latents: Fields = {
        x: (stated.get(x, getattr(clip, x)), "stated" if x in stated else "assumed")
        for x in ("height", "width", "frames", "text_tokens")
    }
    return _imported(document, model, {**latents, **of_class.latents(config)})


def _check(config: _Config, of_class: _Class) -> None:
    """Raise a `SpecError` for a value that is not priced, and for a key that nobody knows."""
    for key, value in of_class.neutral.items():
        given = config.raw(key)
        if key in config.document.data and given not in (value, None) and given != list_of(value):
            message = f"{key} {shown_value(given)}: such layers are not priced"
            hint = "write a model file of what they are nearest to"
            raise SpecError(config.document.problem((key,), message, hint))
    for key in _WIDTH_KEYS:
        if config.raw(key) is not None and config.raw(key) != config.hidden:
            message = f"{key} {config.raw(key)} is not the width of the model, {config.hidden}"
            raise SpecError(
                config.document.problem((key,) * (key in config.document.data), message)
            )
    known = {*_HARMLESS, *of_class.defaults, *of_class.neutral, "out_channels"}
    for key in config.document.data:
        if key not in known:
            message = f"{key}: not a key of {config.document.data[CLASS]} that is known here"
            hint = "leave it out where it changes no size"
            raise SpecError(config.document.problem((key,), message, hint))


def list_of(value: object) -> object:
    """Return a tuple as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def _imported(document: Document, model: Fields, latents: Fields) -> Imported:
    """Return the file with the origin of every field."""
    job = {"global_batch": BATCH, "precision": "bf16", "optimizer": "adam"}
    origins = [Origin(("model", name), text) for name, (_, text) in model.items()]
    origins += [
        Origin(("model", "diffusion", name), _assumption(text), text == "assumed")
        for name, (_, text) in latents.items()
    ]
    texts = ("that of DiT", "usual", "usual")
    origins += [
        Origin(("training", name), text, assumed=True)
        for name, text in zip(job, texts, strict=True)
    ]
    sections = [{name: value for name, (value, _) in part.items()} for part in (model, latents)]
    return Imported(
        kind="model",
        document={"model": {**sections[0], "diffusion": sections[1]}, "training": job},
        origins=tuple(origins),
        source=document.file or "Python data",
        format=f"diffusers config.json ({document.data[CLASS]})",
        notes=tuple(_not_counted(document)),
    )


def _assumption(text: str) -> str:
    return "default of the pipeline" if text == "assumed" else text


def _not_counted(document: Document) -> list[str]:
    """Name what is left out of a class."""
    data = document.data
    if data[CLASS] != "PixArtTransformer2DModel" or data.get("use_additional_conditions") is False:
        return []
    return ["ignored (under 0.1 % of parameters): embeddings of resolution and aspect"]
