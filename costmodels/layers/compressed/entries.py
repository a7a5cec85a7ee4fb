"""How many compressed entries a query sees, and what makes one: the compressor and its indexer."""

from dataclasses import dataclass

from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import CompressedShape, ModelShape

SPARSE_SERIES, HEAVY_SERIES = 2, 1
"""Series of keys and of gates that a token gives: windows of the sparse kind overlap."""


def seen_entries(ratio: int, seq_len: int, top_k: int = 0) -> float:
    """Return the mean entries of a query, each of `ratio` tokens that lie behind it.

    e = sum over t = 1..s of min( floor(t / m), k ) / s,  m = ratio, s = seq_len, k = top_k

    k = 0 means all of them. A query sees an entry once its last token is reached.
    Source: transformers models/deepseek_v4 (causal_threshold of DeepseekV4Indexer and
    DeepseekV4HCACompressor).

    >>> seen_entries(4, 10)  # (0 x 3 + 1 x 4 + 2 x 3) / 10
    1.0
    >>> seen_entries(4, 10, top_k=1)  # 7 of 10 queries see one
    0.7
    """
    whole, rest = divmod(seq_len, ratio)
    if top_k and top_k < whole:
        before = ratio * top_k * (top_k - 1) / 2.0
        return (before + top_k * (seq_len - top_k * ratio + 1)) / seq_len
    return (ratio * whole * (whole - 1) / 2.0 + whole * (rest + 1)) / seq_len


@dataclass(frozen=True, slots=True)
class Compressor:
    """What makes one entry of `ratio` tokens: projections, gates, a bias and a norm."""

    ratio: int
    series: int
    """Series that a token gives: `SPARSE_SERIES` or `HEAVY_SERIES`."""
    width: int
    """Elements of an entry."""

    @property
    def columns(self) -> int:
        """Columns of the projections to keys and gates together."""
        return 2 * self.series * self.width

    @property
    def vectors(self) -> int:
        """Elements of the norm."""
        return self.width

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Return its matrices: keys, gates, the bias by position; no tp rank cuts them."""
        one = self.series * self.width
        return Matrix(one, hidden, count=2), Matrix(self.ratio, one)

    def params(self, hidden: int) -> int:
        """Return its parameters: 2 c d h + m c d + d, c series of width d, m tokens an entry.

        Source: transformers models/deepseek_v4 (DeepseekV4{HCA,CSA}Compressor).
        """
        return self.columns * hidden + self.ratio * self.series * self.width + self.vectors


def sizes_of(shape: ModelShape) -> CompressedShape:
    """Return the `compressed` section of a model."""
    assert shape.compressed is not None  # checked where the model is read
    return shape.compressed


def key_compressor(shape: ModelShape, *, is_sparse: bool) -> Compressor:
    """Return what compresses keys, which are values at once."""
    x = sizes_of(shape)
    if is_sparse:
        return Compressor(x.sparse_ratio, SPARSE_SERIES, shape.head_dim)
    return Compressor(x.heavy_ratio, HEAVY_SERIES, shape.head_dim)


def index_compressor(shape: ModelShape) -> Compressor:
    """Return what compresses the keys of the indexer."""
    x = sizes_of(shape)
    return Compressor(x.sparse_ratio, SPARSE_SERIES, x.index_dim)


def index_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of the indexer: its compressor, queries, weights of heads."""
    x, h = sizes_of(shape), shape.hidden
    queries = Matrix(x.index_heads * x.index_dim, x.q_rank)
    return *index_compressor(shape).matrices(h), queries, Matrix(x.index_heads, h)


def index_params(shape: ModelShape) -> int:
    """Return the parameters of the indexer: its compressor, r_q H d_I of queries, h H of weights.

    Source: transformers models/deepseek_v4 (DeepseekV4Indexer, DeepseekV4IndexerScorer).
    """
    x, h = sizes_of(shape), shape.hidden
    queries = x.q_rank * x.index_heads * x.index_dim
    return index_compressor(shape).params(h) + queries + h * x.index_heads


def index_weights(shape: ModelShape) -> int:
    """Return the weights of the indexer: those of `index_params` without bias and norm."""
    x, h = sizes_of(shape), shape.hidden
    queries = x.q_rank * x.index_heads * x.index_dim
    return index_compressor(shape).columns * h + queries + h * x.index_heads
