"""What layers keep for their backward: saved tensors of Megatron-Core's own modules.

    python tools/checkers/layer_kept.py MEGATRON_FOLDER       # a line of JSON a kind

Modules stand on the meta device, one rank, nothing is computed. Kernels of mamba_ssm and fla need
a GPU: in their place stand functions that keep what their sources hand to save_for_backward. Of a
storage of which a view is kept all is counted.
"""

import contextlib
import itertools
import json
import os
import sys
import types
import typing
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "replay")]

import cuda_on_meta  # noqa: E402
import fake_world  # noqa: E402
import torch  # noqa: E402
from kept import Kept  # noqa: E402

HIDDEN, TOKENS = 512, 1024
MAMBA = {"heads": 16, "head_dim": 64, "groups": 4, "state": 64, "conv": 4, "chunk": 128}
DELTA = {"k_heads": 4, "v_heads": 8, "k_dim": 64, "v_dim": 64, "conv": 4, "chunk": 64}
"""Sections of our model file, as the layers are built."""
MODEL = {
    "hidden": HIDDEN,
    "heads": 8,
    "gated": True,
    "vocab": 256,
    "tied": True,
}
WINDOW, FFN = 128, 1024
LATENT = {"q_rank": 192, "kv_rank": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
EXPERTS = {"experts": 8, "topk": 2, "moe_ffn": 256}
SECTIONS = {
    "mamba2+none": {"mamba2": MAMBA},
    "gdn+none": {"delta_net": DELTA},
    "window+dense": {"window": {"size": WINDOW}, "kv_heads": 2, "head_dim": 64, "ffn": FFN},
    "dense": {"mla": LATENT, "ffn": FFN},
    "moe": {"moe": EXPERTS, "kv_heads": 2, "head_dim": 64},
}
"""What each kind has beside `MODEL`."""
TRAINING = {"seq_len": TOKENS, "global_batch": 8, "precision": "bf16"}


class _Kernel(torch.autograd.Function):
    """A kernel: `make` gives its output and the tensors that it keeps."""

    @staticmethod
    def forward(ctx, make, *inputs):
        out, saved = make(*inputs)
        ctx.save_for_backward(*saved)
        return out


def split_scan(zxbcdt, weight, bias, dt_bias, a, D, chunk_size, headdim, ngroups, **named):
    """Keep the input and the scan's output before its gate.

    Source: mamba_ssm ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn: zxbcdt, out_x,
    A, D, weights.
    """

    def make(zxbcdt, weight, bias, dt_bias, a, D):
        width = D.shape[0] * headdim
        out_x = zxbcdt.new_empty((*zxbcdt.shape[:2], width))
        return torch.empty_like(out_x), (zxbcdt, weight, bias, out_x, a, D, dt_bias)

    return _Kernel.apply(make, zxbcdt, weight, bias, dt_bias, a, D)


class GroupNorm(torch.nn.Module):
    """Keeps its input and a number a group.

    Source: mamba_ssm ops/triton/layernorm_gated.py, LayerNormFn.
    """

    def __init__(self, width, eps=1e-5, group_size=None, norm_before_gate=True, **where):
        super().__init__()
        self.weight, self.group_size = torch.nn.Parameter(torch.ones(width, **where)), group_size

    def forward(self, x):
        """Norm."""

        def make(x, weight):
            numbers = x.new_empty((x.numel() // self.group_size,), dtype=torch.float32)
            return torch.empty_like(x), (x, weight, numbers)

        return _Kernel.apply(make, x, self.weight)


def convolution(x, weight, bias, **named):
    """Keep the input as it comes, a view.

    Source: fla modules/conv/triton/ops.py, CausalConv1dFunction, which leaves x as it is
    (`no_guard_contiguous`).
    """
    return _Kernel.apply(lambda x, w: (x.new_empty(x.shape), (x, w)), x, weight), None


def l2norm(x, **named):
    """Keep the output and a number a head. Source: fla modules/l2norm.py, L2NormFunction."""

    def make(x):
        y = torch.empty_like(x)
        return y, (y, x.new_empty(x.shape[:-1], dtype=torch.float32))

    return _Kernel.apply(make, x)


def delta_rule(q, k, v, g, beta, **named):
    """Keep the inputs, summed decays and a matrix of a chunk's width a head.

    Source: fla ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction: q, k, v, g, beta, A.
    """

    def make(q, k, v, g, beta):
        scores = k.new_empty((*beta.shape, DELTA["chunk"]))
        return torch.empty_like(v), (q, k, v, torch.empty_like(g), beta, scores)

    return _Kernel.apply(make, q, k, v, g, beta), None


def fused(function, *inputs):
    """Run a region that a compiler fuses: it keeps its inputs and computes the rest again."""

    def make(*inputs):
        with torch.no_grad():
            return function(*inputs), inputs

    return _Kernel.apply(make, *inputs)


def put_kernels_in_place():
    """Give Megatron-Core the packages that it asks for."""
    found = {
        "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": GroupNorm},
        "mamba_ssm.ops.triton.ssd_combined": {
            "mamba_chunk_scan_combined": None,
            "mamba_split_conv1d_scan_combined": split_scan,
        },
        "fla.modules.convolution": {"causal_conv1d": convolution},
        "fla.modules.l2norm": {"l2norm": l2norm},
        "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": delta_rule},
    }
    for name, members in found.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        vars(sys.modules[name]).update(members)


def megatron_config(kind="", **sizes):
    """Return Megatron-Core's configuration of the layers; of latent attention for `dense`."""
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    return (MLATransformerConfig if kind == "dense" else TransformerConfig)(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=8,
        params_dtype=torch.bfloat16,
        bf16=True,
        normalization="RMSNorm",
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        perform_initialization=False,
        mamba_state_dim=MAMBA["state"],
        mamba_head_dim=MAMBA["head_dim"],
        mamba_num_groups=MAMBA["groups"],
        mamba_num_heads=MAMBA["heads"],
        linear_conv_kernel_dim=DELTA["conv"],
        linear_key_head_dim=DELTA["k_dim"],
        linear_value_head_dim=DELTA["v_dim"],
        linear_num_key_heads=DELTA["k_heads"],
        linear_num_value_heads=DELTA["v_heads"],
        ffn_hidden_size=FFN,
        gated_linear_unit=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        **sizes,
    )


def transformer_layers():
    """Yield kinds with the model's attention, and Megatron-Core's layers of them."""
    import megatron_parts
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_with_transformer_engine_submodules as parts_of,
    )
    from megatron.core.transformer.transformer_layer import TransformerLayer

    megatron_parts.install(flash=True, local=False)
    grouped = {"num_query_groups": 2, "kv_channels": 64}
    window = {**grouped, "window_size": (WINDOW - 1, 0)}
    latent = {
        "q_lora_rank": LATENT["q_rank"],
        "kv_lora_rank": LATENT["kv_rank"],
        "qk_head_dim": LATENT["qk_nope"],
        "qk_pos_emb_head_dim": LATENT["qk_rope"],
        "v_head_dim": LATENT["v_head"],
        "rope_type": "rope",
        "qk_layernorm": True,
    }
    routed = {
        "num_moe_experts": EXPERTS["experts"],
        "moe_router_topk": EXPERTS["topk"],
        "moe_ffn_hidden_size": EXPERTS["moe_ffn"],
        "moe_token_dispatcher_type": "alltoall",
    }
    yield "window+dense", TransformerLayer(megatron_config(**window), parts_of(), 1)
    config = megatron_config("dense", **latent)
    parts = parts_of(qk_layernorm=True, multi_latent_attention=True)
    yield "dense", TransformerLayer(config, parts, 1)
    config = megatron_config(**grouped, **routed)
    yield "moe", TransformerLayer(config, parts_of(num_experts=EXPERTS["experts"]), 1)


def mixers(config):
    """Yield the kinds of layers of one mixer, and modules that are their norm and mixer."""
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.ssm import mamba_mixer
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
    from megatron.core.tensor_parallel import RowParallelLinear
    from megatron_parts import Norm, NormLinear

    groups = ProcessGroupCollection.use_mpu_process_groups()
    parts = mamba_mixer.MambaMixerSubmodules(in_proj=NormLinear, out_proj=RowParallelLinear)
    named = {"layer_number": 1, "pg_collection": groups}
    yield (
        "mamba2+none",
        mamba_mixer.MambaMixer(
            config, parts, config.hidden_size, chunk_size=MAMBA["chunk"], **named
        ),
    )

    def gated_norm(self, x, gate):
        y = self.out_norm(x.reshape(-1, x.shape[-1]))
        gate = gate.reshape(-1, gate.shape[-1])
        return fused(lambda y, gate: (y * self.act_fn(gate.float())).to(y.dtype), y, gate)

    GatedDeltaNet._apply_gated_norm = gated_norm  # the norm in it is no part of a fused region
    decays = GatedDeltaNet._compute_g_and_beta

    def g_and_beta(self, a, bias, alpha, beta):
        # the rule keeps beta and decays; of the region its input is left
        g = fused(lambda a, bias, alpha: decays(self, a, bias, alpha, beta)[0], a, bias, alpha)
        return g, beta.sigmoid()

    GatedDeltaNet._compute_g_and_beta = g_and_beta
    parts = GatedDeltaNetSubmodules(NormLinear, Norm, RowParallelLinear)
    yield "gdn+none", GatedDeltaNet(config, parts, **named)
    put_checkpoints_in_place()
    again = GatedDeltaNet(config, parts, **named)
    again.recompute_norm_out = True
    yield "gdn+none", again


def put_checkpoints_in_place():
    """Give checkpoints that discard their output what they ask of Transformer Engine."""
    from megatron.core.tensor_parallel import random

    random.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: False)
    random.activation_recompute_forward = lambda **named: contextlib.nullcontext()


def kept_bytes(module, **more):
    """Return what a layer keeps of one forward over `TOKENS`, bytes."""
    kept = Kept()
    module.cuda()  # the router's weight is made on the CPU
    kept.leave_out([*module.parameters(), *more.values()])  # angles serve all layers
    size = TOKENS, 1, HIDDEN
    x = torch.empty(size, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with kept:
        out, _ = module(x, None, **more)
        assert out.shape == x.shape
        return kept.now


def main(megatron):
    """Print a line a kind."""
    warnings.simplefilter("ignore")
    os.environ |= {"TORCH_COMPILE_DISABLE": "1", "PYTORCH_JIT": "0"}
    if not hasattr(typing, "override"):  # the wheel is for Python 3.12
        typing.override = lambda method: method
    cuda_on_meta.install()
    fake_world.skip_foreign_groups()
    sys.path.insert(0, megatron)
    put_kernels_in_place()
    import megatron.core.parallel_state as ps
    from megatron.core import tensor_parallel

    fake_world.start(1)
    ps.initialize_model_parallel(create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    angles = {"rotary_pos_emb": torch.empty(TOKENS, 1, 1, 64, device="meta")}
    rotary = {"window+dense": angles, "moe": angles}
    for kind, module in itertools.chain(mixers(megatron_config()), transformer_layers()):
        model = {**MODEL, **SECTIONS[kind], "layer_kinds": [{"kind": kind, "count": 1}]}
        answer = {
            "kind": kind,
            "model": model,
            "training": TRAINING,
            "parameters": sum(weight.numel() for weight in module.parameters()),
            "recompute_modules": ["gdn_norm_out"] * getattr(module, "recompute_norm_out", False),
            "kept_bytes": kept_bytes(module, **rotary.get(kind, {})),
        }
        print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
