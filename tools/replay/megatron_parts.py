"""What stands for the kernels that Megatron-Core takes from elsewhere: norms, fused attention.

Each keeps for its backward what the kernel keeps, read from its source; nothing is computed.
"""

import contextlib

import numpy as np
import torch
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.transformer.dot_product_attention import DotProductAttention
from torch import Tensor


class _Norm(torch.autograd.Function):
    """A norm in one kernel: keeps its input, the weight and one or two fp32 numbers a row.

    Source: torch _fused_rms_norm and native_layer_norm on CUDA, Apex FusedLayerNorm,
    Transformer Engine's rmsnorm_fwd.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, n_numbers: int, *more: Tensor):
        numbers = x.new_empty((n_numbers, *x.shape[:-1]), dtype=torch.float32)
        ctx.save_for_backward(x, weight, numbers)
        ctx.n_more = len(more)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, _ = ctx.saved_tensors
        whole = torch.empty_like(weight)
        return torch.empty_like(x), whole, None, *(torch.empty_like(whole),) * ctx.n_more


class Norm(torch.nn.Module):
    """An RMSNorm or LayerNorm; with sequence parallelism its gradients are summed over tp."""

    def __init__(self, config, hidden_size, eps=1e-5, **more):
        super().__init__()
        device = torch.cuda.current_device()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device))
        self.bias = None
        if config.normalization == "LayerNorm":
            self.bias = torch.nn.Parameter(torch.zeros(hidden_size, device=device))
        for weight in self.parameters():
            weight.sequence_parallel = config.sequence_parallel

    def forward(self, x):
        """Norm the last dimension."""
        more = () if self.bias is None else (self.bias,)
        return _Norm.apply(x, self.weight, 1 + len(more), *more)


class _Flash(torch.autograd.Function):
    """A flash kernel: keeps queries, keys, values, output and an fp32 log-sum-exp a row and head.

    Source: flash_attn_interface.py (FlashAttnFunc), Transformer Engine FusedAttnFunc.
    """

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor):
        tokens, batch, heads, _ = query.shape
        out = query.new_empty((tokens, batch, heads, value.shape[-1]))
        sums = query.new_empty((batch, heads, tokens), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class FlashAttention(torch.nn.Module):
    """Core attention of one rank's tokens; what context parallelism exchanges is left out."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, **more):
        super().__init__()

    def forward(self, query, key, value, *more, **named):
        """Attend."""
        # Transformer Engine copies what is not laid out as one of its kernels takes it.
        out = _Flash.apply(query.contiguous(), key.contiguous(), value.contiguous())
        return out.flatten(2)


class NormLinear(ColumnParallelLinear):
    """A norm and a column-parallel linear layer in one module, as Transformer Engine has them."""

    def __init__(self, input_size, output_size, *, config, **more):
        super().__init__(input_size, output_size, config=config, **more)
        norm, own = Norm(config, input_size), dict(self._parameters)
        for name in own:
            self._parameters.pop(name)
        for name, weight in norm.named_parameters():
            self.register_parameter(f"layer_norm_{name}", weight)
        self._parameters.update(own)

    def forward(self, x, *more, **named):
        """Norm, then project."""
        added = (self.layer_norm_bias,) if hasattr(self, "layer_norm_bias") else ()
        normed = _Norm.apply(x, self.layer_norm_weight, 1 + len(added), *added)
        return super().forward(normed, *more, **named)


class Duplicated(torch.nn.Module):
    """A linear layer that every rank holds whole; latent attention projects down with it.

    With sequence parallelism its gradient is summed over tp (extensions/transformer_engine.py).
    """

    def __init__(self, input_size, output_size, *, config, **more):
        super().__init__()
        device = torch.cuda.current_device()
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, device=device))
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x):
        """Project; there is no bias."""
        return torch.nn.functional.linear(x, self.weight), None


class _Rotated(torch.autograd.Function):
    """Rotary embedding in one kernel: keeps the angles, which all layers share."""

    @staticmethod
    def forward(ctx, x: Tensor, angles: Tensor):
        ctx.save_for_backward(angles)
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, gradient):
        return torch.empty_like(gradient), None


def rotate(x, angles, *more, **named):
    """Stand for Transformer Engine's fused_apply_rotary_pos_emb."""
    return _Rotated.apply(x, angles)


def dropout(x, p=0.5, training=True, inplace=False):
    """Drop out as on a GPU: one kernel, which keeps a mask of a byte an element."""
    return torch.native_dropout(x, p, True)[0] if p and training else x


class _Softmax(torch.autograd.Function):
    """Scale, mask and softmax in one kernel: keeps its output (fusions/fused_softmax.py)."""

    @staticmethod
    def forward(ctx, scores: Tensor):
        out = torch.empty_like(scores)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return torch.empty_like(gradient)


class PlainAttention(DotProductAttention):
    """Megatron-Core's own attention on values that are laid out like queries and keys."""

    def forward(self, query, key, value, *more, **named):
        """Attend."""
        return super().forward(query, key, value.contiguous(), *more, **named)


class Provider(LocalSpecProvider):
    """Megatron-Core's own layers in the places where Transformer Engine's stand."""

    flash = True

    def linear(self):
        """Which linear layer is not parallel."""
        return Duplicated

    def fuse_layernorm_and_linear(self):
        """Norms stand in the linear layers."""
        return True

    def column_parallel_layer_norm_linear(self):
        """Which module is a norm with a linear layer."""
        return NormLinear

    def layer_norm(self, *args, **named):
        """Which module is a norm."""
        return Norm

    def core_attention(self):
        """Which module is attention: a flash kernel, or Megatron-Core's own without one."""
        return FlashAttention if self.flash else PlainAttention


def share_out_evenly():
    """Make every expert get equally many tokens: meta tensors have no contents to route by.

    The collective that tells the others how many go where is kept.
    """
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    class NoFp8:
        is_fp8_enabled = staticmethod(lambda: False)

    random.FP8GlobalStateManager = NoFp8
    random.activation_recompute_forward = lambda **named: contextlib.nullcontext()
    random.fp8_autocast = lambda *args, **named: contextlib.nullcontext()
    kind = token_dispatcher.MoEAlltoAllTokenDispatcher
    preprocess = kind.preprocess

    def even(self, routing_map):
        found = preprocess(self, routing_map)
        if self.drop_and_pad:
            return np.full(found.shape, self.capacity * self.tp_size * self.ep_size)
        rows, experts = self.num_out_tokens, self.num_experts
        each, rest = divmod(rows, experts)
        if rest:
            raise ValueError(f"{rows} copies do not go evenly to {experts} experts")
        ep, tp, own = self.ep_size, self.tp_size, self.num_local_experts
        if ep > 1 or tp > 1:
            self.input_splits = self.output_splits = np.full(ep, rows // ep)
            self.output_splits_tp = np.full(tp, rows)
        if own > 1:
            self.num_global_tokens_per_local_expert = np.full((ep * tp, own), each)
            chunks = np.arange(experts * tp)
            self.sort_input_by_local_experts = chunks.reshape(-1, own).T.ravel()
            self.restore_output_by_local_experts = chunks.reshape(own, -1).T.ravel()
        return np.full(own, each * ep * tp)

    kind.preprocess = even
    kind._maybe_dtoh_and_synchronize = lambda self, point, tokens_per_expert=None: (
        tokens_per_expert
    )


def install(flash, local):
    """Put the stand-ins in their places; with `local` layers only norms and attention."""
    from megatron.core.fusions import fused_softmax
    from megatron.core.models import backends
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer import multi_latent_attention, transformer_block

    Provider.flash = flash
    share_out_evenly()
    torch.nn.functional.dropout = dropout
    rope_utils._apply_rotary_pos_emb_bshd = rotate
    for module in (backends, gpt_layer_specs, transformer_block):
        for name in ("LNImpl", "WrappedTorchNorm", "LayerNormImpl"):
            if hasattr(module, name):
                setattr(module, name, Norm)
    if local:
        if flash:
            backends.LocalSpecProvider.core_attention = lambda self: FlashAttention
        return
    gpt_layer_specs.TESpecProvider, gpt_layer_specs.TENorm = Provider, Norm
    multi_latent_attention.TELinear = Duplicated
    with contextlib.suppress(ImportError):  # 0.19
        from megatron.core.transformer import mla_qk_norm_config

        mla_qk_norm_config.get_backend = lambda *args: Provider()
    kind = fused_softmax.FusedScaleMaskSoftmax
    kind.is_kernel_available = lambda self, *args: True
    kind.forward_fused_softmax = lambda self, scores, mask: _Softmax.apply(scores)
