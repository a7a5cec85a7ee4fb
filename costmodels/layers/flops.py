"""Model FLOPs of a training step, as Megatron counts them (the MFU numerator)."""

import numpy as np

from costmodels.parameters import latent_params
from costmodels.shapes import ModelShape, TrainingJob


def model_flops_per_token(shape: ModelShape, seq_len: int) -> float:
    """Return forward plus backward FLOPs per token, without recompute.

    F = 6 { L [ h (h_q + 2 h_kv) + h_q h + c h f ] + h V } + 6 L h_q s

    f counts k f_e + f_s in a layer with experts (the router is not counted). Latent attention:
    its projections in place of the first two terms, a (d_k + d_v) / 2 for h_q in the last.
    Multi-token prediction: a layer of the last kind, 2 h^2 + 3 h and h V a module.
    c = 3 gated, 2 otherwise; 2 FLOPs per multiply-add, factor 3 for forward, data and weight
    gradient; the causal mask halves the attention core. V is the padded vocabulary without
    tensor parallelism. Left out: norms, activations, rotary embedding, softmax, optimizer.

    Source: Megatron-LM training/training.py, num_floating_point_operations.

    >>> from costmodels.examples import LLAMA3_8B
    >>> round(model_flops_per_token(LLAMA3_8B, 8192) / (6 * 8.030e9), 3)
    1.068
    """
    h, q, kv = shape.hidden, shape.q_width, shape.kv_heads * shape.head_dim
    vocab = shape.padded_vocab or -(-shape.vocab // shape.vocab_multiple) * shape.vocab_multiple
    projections, core, per_width = h * (q + 2 * kv) + q * h, q, (3 if shape.gated else 2) * h
    if shape.latent:
        projections = round(float(latent_params(shape, np.ones(1, dtype=np.int32))[0]))
        core = (q + shape.v_width) // 2
    modules, layers = shape.mtp_layers, shape.layers + shape.mtp_layers
    n_routed = shape.n_expert_layers
    if modules and shape.expert_layers[-1]:
        n_routed += modules
    width = shape.top_k * shape.expert_ffn + shape.shared_ffn
    mlps = (layers - n_routed) * per_width * shape.ffn + n_routed * per_width * width
    body = layers * projections + mlps + modules * (2 * h * h + 3 * h)
    return 6.0 * (body + (1 + modules) * h * vocab) + 6.0 * layers * core * seq_len


def model_flops_per_step(shape: ModelShape, job: TrainingJob) -> float:
    """Return model FLOPs of one optimizer step over all devices."""
    return model_flops_per_token(shape, job.seq_len) * job.tokens_per_step
