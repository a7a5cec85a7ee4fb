"""Model FLOPs of a training step, as Megatron counts them (the MFU numerator)."""

from costmodels.shapes import ModelShape, TrainingJob


def model_flops_per_token(shape: ModelShape, seq_len: int) -> float:
    """Return forward plus backward FLOPs per token, without recompute.

    F = 6 { L [ h (h_q + 2 h_kv) + h_q h + c h f ] + h V } + 6 L h_q s

    c = 3 gated, 2 otherwise; 2 FLOPs per multiply-add, factor 3 for forward, data and weight
    gradient; the causal mask halves the attention core. V is the padded vocabulary without
    tensor parallelism. Left out: norms, activations, rotary embedding, softmax, optimizer.

    Source: Megatron-LM training/training.py, num_floating_point_operations.

    >>> from costmodels.examples import LLAMA3_8B
    >>> round(model_flops_per_token(LLAMA3_8B, 8192) / (6 * 8.030e9), 3)
    1.068
    """
    h, q, kv = shape.hidden, shape.q_width, shape.kv_heads * shape.head_dim
    layer = h * (q + 2 * kv) + q * h + (3 if shape.gated else 2) * h * shape.ffn
    vocab = shape.padded_vocab or -(-shape.vocab // shape.vocab_multiple) * shape.vocab_multiple
    return 6.0 * (shape.layers * layer + h * vocab) + 6.0 * shape.layers * q * seq_len


def model_flops_per_step(shape: ModelShape, job: TrainingJob) -> float:
    """Return model FLOPs of one optimizer step over all devices."""
    return model_flops_per_token(shape, job.seq_len) * job.tokens_per_step
