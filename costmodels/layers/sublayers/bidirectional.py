"""Attention of encoders as a mixer: a query sees the tokens on both sides of it."""

from dataclasses import replace

from costmodels.layers.compute import ATTENTION_TILE
from costmodels.layers.layer_kind import LayerInputs
from costmodels.layers.sublayers.attention import ATTENTION, attention_macs_over, attention_terms
from costmodels.layers.sublayers.sublayer import MixerTerms
from costmodels.shapes import ModelShape


def two_sided_keys(size: int, seq_len: int) -> float:
    """Return the mean keys of a query that sees itself and r = (w - 1) / 2 tokens on each side.

    k = w - r (r + 1) / s  for r < s, else s

    The first and the last r queries see fewer.
    Source: a count; transformers models/modernbert (|i - j| <= local_attention / 2).

    >>> two_sided_keys(5, 8)  # (3 + 4 + 5 x 4 + 4 + 3) / 8 = 34 / 8
    4.25
    >>> two_sided_keys(99, 8)
    8.0
    """
    reach = (size - 1) // 2
    if reach >= seq_len:
        return float(seq_len)
    return 2 * reach + 1 - reach * (reach + 1) / seq_len


def two_sided_run_keys(keys: float, seq_len: int) -> float:
    """Return the mean keys that a flash kernel multiplies for a query, tiles being whole.

    min( s,  k + 128 )

    Two edges cut tiles of 128 rows in half, as those of a causal window (`attention.run_keys`).

    >>> two_sided_run_keys(129.0, 8192), two_sided_run_keys(8000.0, 8064)
    (257.0, 8064.0)
    """
    return min(float(seq_len), keys + ATTENTION_TILE)


def _all_keys(shape: ModelShape, seq_len: int) -> float:
    return float(seq_len)


def _window_keys(shape: ModelShape, seq_len: int) -> float:
    assert shape.window is not None  # checked where the model is read
    return two_sided_keys(shape.window.size, seq_len)


def bidirectional_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of attention over all keys of a sequence, no half of them masked."""
    return attention_terms(inputs, float(inputs.problem.job.seq_len))


def bidirectional_window_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of attention over a window on both sides."""
    shape, seq_len = inputs.problem.shape, inputs.problem.job.seq_len
    return attention_terms(inputs, two_sided_run_keys(_window_keys(shape, seq_len), seq_len))


BIDIRECTIONAL = replace(
    ATTENTION,
    name="bidirectional",
    title="bidirectional attention",
    equation="x + attention(norm(x)), each query over all tokens of the sequence",
    source="Devlin et al. 2018 (BERT); transformers models/modernbert",
    macs=attention_macs_over(_all_keys),
    terms=bidirectional_terms,
    frameworks=("deepspeed", "fsdp2"),
)
BIDIRECTIONAL_WINDOW = replace(
    BIDIRECTIONAL,
    name="bidirectional-window",
    title="bidirectional window attention",
    equation="x + attention(norm(x)), each query over itself and (w - 1) / 2 tokens on each side",
    source="Beltagy et al. 2020 (Longformer); transformers models/modernbert; Transformer Engine"
    " attention/dot_product_attention/context_parallel.py (windows not with p2p)",
    macs=attention_macs_over(_window_keys),
    terms=bidirectional_window_terms,
    section="window",
    cp_comms=("all-gather", "a2a"),
)
