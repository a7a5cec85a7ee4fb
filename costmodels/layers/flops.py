"""Model FLOPs of a training step, as Megatron counts them (the MFU numerator)."""

from costmodels.layers.kinds import kinds_of
from costmodels.layers.params import stream_params
from costmodels.layers.streams.connections import collapse_macs
from costmodels.layers.streams.ends import n_streams
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.towers.encoder import encoder_end_flops
from costmodels.towers.latents import end_flops
from costmodels.towers.vision import vision_flops
from costmodels.tuning.model import model_adapter_params
from costmodels.tuning.records import TuningJob


def model_flops_per_token(
    shape: ModelShape, seq_len: float, tuning: TuningJob | None = None
) -> float:
    """Return forward plus backward FLOPs per token, without recompute.

    F = 6 { L [ h (h_q + 2 h_kv) + h_q h + c h f ] + h V } + 6 L h_q s

    f counts k f_e + f_s in a layer with experts (the router is not counted). Latent attention:
    its projections in place of the first two terms, a (d_k + d_v) / 2 for h_q in the last.
    A layer before the head that encoders have: h^2. Further residual streams: 2 (a - 1) h^2. A
    vision tower: its own (`vision_flops`) over s, the tokens of a sequence; so on the ends of an
    encoder (`encoder_end_flops`). A diffusion transformer: its ends (`end_flops`) over s in place
    of the vocabulary.
    With adapters (`tuning`) frozen weights have no weight gradient, 4 in place of 6 outside the
    attention core, and adapters of N parameters 6 N more; of routed experts those that a token
    meets.
    Multi-token prediction: a layer of the last kind, 2 h^2 + 3 h and h V a module. With n streams
    of hyper-connections n^2 h in front of each head, (n + 1) h^2 for 2 h^2.
    c = 3 gated, 2 otherwise; 2 FLOPs per multiply-add, factor 3 for forward, data and weight
    gradient; the causal mask halves the attention core. Kinds of layers of other mixers have
    their own multiply-adds in place of all that (`LayerMacs`), those of a context over s. V is the
    padded vocabulary without tensor parallelism. Left out: norms, activations, rotary embedding,
    softmax, optimizer.

    Source: Megatron-LM training/training.py, num_floating_point_operations.

    >>> from costmodels.examples import LLAMA3_8B
    >>> round(model_flops_per_token(LLAMA3_8B, 8192) / (6 * 8.030e9), 3)
    1.068
    """
    h, modules = shape.hidden, shape.mtp_layers
    vocab = shape.padded_vocab or -(-shape.vocab // shape.vocab_multiple) * shape.vocab_multiple
    body, core, last = modules * (2 * h * h + 3 * h), 0, shape.layer_sequence[-1]
    body += h * h * shape.head_transform + 2 * stream_params(shape)
    body += modules * (n_streams(shape) - 1) * h * h + (1 + modules) * collapse_macs(shape)
    fixed = 0.0
    for i, (kind, count) in enumerate(zip(kinds_of(shape), shape.kind_counts, strict=True)):
        macs, n = kind.macs(shape), count + modules * (i == last)
        body += n * (macs.projections + macs.mlp)
        core += n * macs.core
        fixed += n * macs.core_at(round(seq_len)) if macs.core_at else 0.0
        fixed += n * macs.of_sequence / seq_len if macs.of_sequence else 0.0
    if shape.diffusion:
        return 6.0 * body + 6.0 * fixed + end_flops(shape) / seq_len
    passes = 4.0 if tuning else 6.0
    language = passes * (body + (1 + modules) * h * vocab) + 6.0 * core * seq_len + 6.0 * fixed
    if tuning:
        met_frac = shape.top_k / max(1, shape.n_experts)
        language += 6.0 * model_adapter_params(shape, tuning, met_frac)
    if shape.encoder:
        language += encoder_end_flops(shape) / seq_len
    return language + vision_flops(shape) / seq_len if shape.vision else language


def model_flops_per_step(shape: ModelShape, job: TrainingJob) -> float:
    """Return model FLOPs of one optimizer step over all devices."""
    return model_flops_per_token(shape, job.core_tokens, job.tuning) * job.tokens_per_step
