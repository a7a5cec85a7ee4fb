"""Diffusion transformers of diffusers: parameters, FLOPs of a step, what a block keeps.

    python tools/checkers/diffusion_layers.py       # a line of JSON a figure of theirs

Small models of every class on the CPU. FlopCounterMode counts a forward and a backward with
attention as plain products; what a block keeps is what autograd saves of one forward in bf16 with
a fused kernel, each storage once, without weights and without what all blocks share.
"""

import inspect
import json
import sys
import warnings
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "replay")]

from kept import Kept  # noqa: E402

TEXT, SIDE = 64, 256
"""Tokens of a text, pixels of a side."""
HEADS = {"num_attention_heads": 4, "attention_head_dim": 64}
CASES = {
    "FluxTransformer2DModel": {
        "num_layers": 2,
        "num_single_layers": 3,
        "joint_attention_dim": 96,
        "pooled_projection_dim": 48,
        "guidance_embeds": True,
        "axes_dims_rope": [16, 24, 24],
    },
    "Flux2Transformer2DModel": {
        "num_layers": 2,
        "num_single_layers": 3,
        "joint_attention_dim": 96,
        "axes_dims_rope": [16, 16, 16, 16],
    },
    "QwenImageTransformer2DModel": {
        "num_layers": 12,
        "joint_attention_dim": 96,
        "axes_dims_rope": [16, 24, 24],
    },
    "SD3Transformer2DModel": {
        "num_layers": 3,
        "joint_attention_dim": 96,
        "pooled_projection_dim": 48,
        "caption_projection_dim": 256,
        "sample_size": 32,
        "qk_norm": "rms_norm",
    },
    "HunyuanVideoTransformer3DModel": {
        "num_layers": 2,
        "num_single_layers": 2,
        "text_embed_dim": 96,
        "pooled_projection_dim": 48,
        "rope_axes_dim": [16, 24, 24],
    },
    "WanTransformer3DModel": {"num_layers": 2, "text_dim": 96, "ffn_dim": 896},
    "LTXVideoTransformer3DModel": {
        "num_layers": 2,
        "caption_channels": 96,
        "cross_attention_dim": 256,
        "in_channels": 32,
        "out_channels": 32,
    },
    "CogVideoXTransformer3DModel": {
        "num_layers": 2,
        "text_embed_dim": 96,
        "time_embed_dim": 128,
        "sample_width": 32,
        "sample_height": 32,
        "sample_frames": 9,
        "max_text_seq_length": TEXT,
        "use_rotary_positional_embeddings": True,
    },
    "PixArtTransformer2DModel": {
        "num_layers": 2,
        "caption_channels": 96,
        "cross_attention_dim": 256,
        "sample_size": 32,
        "use_additional_conditions": False,
    },
}
"""Arguments of a small model of each class, beside `HEADS`."""
VIDEO = {"HunyuanVideo": (8, 4), "Wan": (8, 4), "LTX": (32, 8), "CogVideoX": (8, 4)}
"""Pixels and frames of a latent of the classes that make videos."""
FRAMES = 9


def video_of(name):
    """Return pixels and frames of a latent, and the frames of a sample."""
    for stem, (pixels, frames) in VIDEO.items():
        if name.startswith(stem):
            return pixels, frames, FRAMES
    return 8, 1, 1


def side_of(name):
    """Return the pixels of a side: latents of LTX are large."""
    return SIDE * 4 if name.startswith("LTX") else SIDE


def inputs_of(name, model, dtype):
    """Return the arguments of a forward over one sample."""
    config, (pixels, per_latent, frames) = model.config, video_of(name)
    grid, depth = side_of(name) // pixels, (frames - 1) // per_latent + 1
    step = torch.tensor([500], dtype=torch.long)
    width = next(
        config[key]
        for key in ("joint_attention_dim", "text_embed_dim", "text_dim", "caption_channels")
        if config.get(key)
    )
    given = {"encoder_hidden_states": torch.randn(1, TEXT, width, dtype=dtype), "timestep": step}
    channels = config["in_channels"]
    if name.startswith(("Flux", "Qwen", "LTX")):
        side = grid if name.startswith("LTX") else grid // 2
        shape = (1, depth * side * side, channels)
    elif name.startswith("CogVideoX"):
        shape = (1, depth, channels, grid, grid)
    elif depth > 1:
        shape = (1, channels, depth, grid, grid)
    else:
        shape = (1, channels, grid, grid)
    given["hidden_states"] = torch.randn(shape, dtype=dtype)
    if config.get("pooled_projection_dim"):
        pooled = torch.randn(1, config["pooled_projection_dim"], dtype=dtype)
        given["pooled_projections"] = pooled
    if name.startswith("Flux"):
        axes = len(config["axes_dims_rope"])
        given |= {"img_ids": torch.zeros(shape[1], axes), "txt_ids": torch.zeros(TEXT, axes)}
        given["timestep"] = torch.tensor([0.5], dtype=dtype)
    if config.get("guidance_embeds"):
        given["guidance"] = torch.tensor([3.5], dtype=dtype)
    if name.startswith("Qwen"):
        given |= {"img_shapes": [[(1, grid // 2, grid // 2)]], "txt_seq_lens": [TEXT]}
        given["encoder_hidden_states_mask"] = torch.ones(1, TEXT, dtype=torch.bool)
    if name.startswith("Hunyuan"):
        given["encoder_attention_mask"] = torch.ones(1, TEXT, dtype=torch.bool)
    if name.startswith("LTX"):
        given["encoder_attention_mask"] = torch.ones(1, TEXT, dtype=torch.bool)
        given |= {"num_frames": depth, "height": grid, "width": grid}
    if name.startswith("CogVideoX"):
        tokens = depth * (grid // 2) ** 2
        angles = torch.randn(tokens, config["attention_head_dim"])
        given["image_rotary_emb"] = (angles.cos(), angles.sin())
    if name.startswith("PixArt"):
        given["added_cond_kwargs"] = {"resolution": None, "aspect_ratio": None}
    takes = inspect.signature(model.forward).parameters
    return {key: value for key, value in given.items() if key in takes}


def flops_of(name, model):
    """Return the FLOPs of a forward and a backward over one sample."""
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        out = model(**inputs_of(name, model, torch.float32), return_dict=False)[0]
        out.square().mean().backward()
    return counter.get_total_flops()


def blocks_of(model):
    """Return a block of every kind, the last one of a model apart where it is another."""
    blocks = model.transformer_blocks if hasattr(model, "transformer_blocks") else model.blocks
    found = {"first": blocks[0], "last": blocks[-1]}
    if getattr(model, "single_transformer_blocks", None):
        found["single"] = model.single_transformer_blocks[-1]
    return found


def shared_by_blocks(name, tensors):
    """Return what no block keeps for itself: angles, and text of cross attention."""
    crosses = name.startswith(("Wan", "LTX", "PixArt"))
    is_text = [crosses and x.dim() == 3 and x.shape[1] == TEXT for x in tensors]
    return [x for x, on in zip(tensors, is_text, strict=True) if on or not x.requires_grad]


def counted_forward(name, block, answer):
    """Return a block's forward that writes what it keeps into `answer`, bytes."""
    forward = block.forward

    def wrapped(*args, **named):
        given = [x for one in (*args, *named.values()) for x in flat(one)]
        kept = Kept()
        kept.leave_out([*block.parameters(), *shared_by_blocks(name, given)])
        with kept:
            out = forward(*args, **named)
            answer["bytes"] = kept.now
        return out

    return wrapped


def flat(value):
    """Return the tensors of an argument."""
    if isinstance(value, tuple | list):
        return [x for one in value for x in flat(one)]
    return [value] if isinstance(value, torch.Tensor) else []


class RmsNorm(torch.autograd.Function):
    """Keeps its input and a number a row, as the kernel for CUDA does.

    On the CPU torch puts this norm together of operators in fp32. Source: torch
    aten/src/ATen/native/layer_norm.cpp (rms_norm), _fused_rms_norm in derivatives.yaml.
    """

    @staticmethod
    def forward(ctx, x, weight):
        """Norm."""
        numbers = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, numbers, weight)
        return torch.empty_like(x)


def fused_rms_norm(x, normalized_shape, weight=None, eps=None):
    """Stand in the place of torch's function."""
    return RmsNorm.apply(x, weight)


def kept_of(name, model):
    """Return what blocks keep of a forward over one sample, bytes, by block."""
    model, found = model.to(torch.bfloat16), {}
    functional = torch.nn.functional
    own, functional.rms_norm = functional.rms_norm, fused_rms_norm
    for key, block in blocks_of(model).items():
        answer = {}
        block.forward = counted_forward(name, block, answer)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            model(**inputs_of(name, model, torch.bfloat16), return_dict=False)
        del block.forward
        found[key] = answer["bytes"]
    functional.rms_norm = own
    return found


def main():
    """Print a line a class."""
    warnings.simplefilter("ignore")
    import diffusers

    for name, arguments in CASES.items():
        torch.manual_seed(0)
        model = getattr(diffusers, name)(**HEADS, **arguments)
        pixels, per_latent, frames = video_of(name)
        config = {key: value for key, value in dict(model.config).items() if key[0] != "_"}
        answer = {
            "config": {"_class_name": name, "_diffusers_version": diffusers.__version__, **config},
            "height": side_of(name),
            "frames": frames,
            "text_tokens": TEXT,
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "flops": flops_of(name, model),
            "kept_bytes": kept_of(name, model),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
