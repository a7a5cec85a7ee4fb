"""What is trained: the architecture and the job, as plain numbers."""

from dataclasses import dataclass

from costmodels.precision import RECIPES, Recipe


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder-only transformer. Sizes in elements, switches as booleans."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    """SwiGLU-like MLP with three matrices; otherwise two matrices and GeLU."""
    vocab: int
    tied: bool
    """Input embedding and output head share one matrix."""
    norm: str = "rmsnorm"
    """`rmsnorm` (one vector) or `layernorm` (two vectors)."""
    bias: bool = False
    """Linear layers carry biases."""
    positions: str = "rope"
    """`rope` (no parameters) or `learned` (one vector per position)."""
    max_positions: int = 0
    """Rows of the learned position table; 0 means the sequence length."""
    flash_attention: bool = True
    """A fused attention kernel that never stores the score matrix."""
    dropout: bool = False
    """Hidden and attention dropout are on (masks are stored)."""
    padded_vocab: int = 0
    """Rows of the vocabulary matrices as allocated; 0 means pad to `vocab_multiple * tp`."""
    vocab_multiple: int = 128

    @property
    def q_width(self) -> int:
        """Width of the query projection: heads * head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the key projection (and of the value projection)."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One optimizer step: tokens in, numeric recipe, total length of the run."""

    seq_len: int
    global_batch: int
    """Sequences per optimizer step over all devices (gbs)."""
    precision: str = "bf16"
    optimizer: str = "adam"
    tokens: float = 0.0
    """Tokens of the whole run; 0 when not stated."""

    @property
    def recipe(self) -> Recipe:
        """Bytes per parameter of the precision and optimizer."""
        return RECIPES[self.precision, self.optimizer]

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.seq_len * self.global_batch
