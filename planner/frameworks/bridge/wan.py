"""Wan in a recipe of Megatron-Bridge: fields of its provider, its data, its forward step."""

from costmodels.plans import Layout
from costmodels.shapes import ModelShape
from planner.frameworks.emitted_text import EmittedCode, keywords

UNUSED_VOCAB = 202_048
"""Rows that its training loop asks for, and that no layer of latents has."""
WAN_IMPORT = (
    "from megatron.bridge.diffusion.data.wan.wan_energon_datamodule import WanDatasetConfig\n"
)
WAN_STEP = (
    "    from megatron.bridge.diffusion.models.wan.wan_step import WanForwardStep\n\n"
    "    forward_step = WanForwardStep()\n"
)


def wan_fields(shape: ModelShape) -> dict[str, object]:
    """Return the sizes of a model of Wan as fields of its provider.

    Source: Megatron-Bridge diffusion/models/wan/wan_provider.py.
    """
    x = shape.diffusion
    assert x is not None  # asked for such models alone
    return {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "crossattn_emb_size": shape.hidden,
        "in_channels": x.channels,
        "out_channels": x.out_channels or x.channels,
        "patch_spatial": x.patch,
        "patch_temporal": x.patch_frames,
        "freq_dim": x.time_width,
        "text_len": x.text_tokens,
        "text_dim": x.text_width,
        "seq_length": x.tokens,
        "activation_func": EmittedCode("F.gelu"),
    }


def wan_dataset(shape: ModelShape, layout: Layout) -> str:
    """Return its data: latents of one size, synthetic while no path is given.

    Source: Megatron-Bridge diffusion/data/wan/wan_energon_datamodule.py.
    """
    x = shape.diffusion
    assert x is not None  # asked for such models alone
    fields = {
        "path": EmittedCode("DATA_PATH"),
        "seq_length": x.tokens,
        "packing_buffer_size": 200,
        "micro_batch_size": layout.mbs,
        "global_batch_size": layout.gbs,
        "F_latents": (x.frames - 1) // x.vae_frames + 1,
        "H_latents": x.height // x.vae_factor,
        "W_latents": x.width // x.vae_factor,
        "patch_spatial": x.patch,
        "patch_temporal": x.patch_frames,
        "number_packed_samples": 1,
        "context_seq_len": x.text_tokens,
        "context_embeddings_dim": x.text_width,
    }
    return f"WanDatasetConfig(\n{keywords(fields, 12)}        )"
