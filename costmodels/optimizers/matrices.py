"""The matrices of a model: what Muon, SOAP and Adafactor treat as one."""

from dataclasses import dataclass, replace

from costmodels.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Matrix:
    """Matrices alike of one layer, rows x columns as the software holds them, unsharded."""

    rows: int
    columns: int
    count: int = 1
    cut: str = ""
    """What tensor parallelism cuts: `rows` (column-parallel layers), `columns` (row-parallel
    ones); empty: every rank holds the whole."""
    parts: tuple[int, ...] = ()
    """Rows of the parts that are orthogonalized apart (queries, keys, values); empty: one."""
    is_routed: bool = False
    """Matrices of the routed experts: `count` is one of each expert."""
    is_state_input: bool = False
    """It projects to all inputs of a Mamba-2 layer (`MuonOptions.mamba_in_proj`)."""

    @property
    def elements(self) -> int:
        """Parameters of one, unsharded."""
        return self.rows * self.columns

    def shard_elements(self, tp: int) -> float:
        """Return the parameters of one that a rank holds."""
        rows, columns = self.shard_sizes(tp)
        return rows * columns

    def shard_sizes(self, tp: int) -> tuple[float, float]:
        """Return rows and columns of what a rank holds of one."""
        rows = self.rows / (tp if self.cut == "rows" else 1)
        return rows, self.columns / (tp if self.cut == "columns" else 1)

    def packing_cost(self, tp: int) -> float:
        """Return what decides which rank it goes to: longer side x shorter side squared.

        Source: Megatron-LM core/optimizer/layer_wise_optimizer.py (_ns_compute_cost).
        """
        short, long = sorted(self.shard_sizes(tp))
        return long * short**2

    @property
    def pieces(self) -> tuple["Matrix", ...]:
        """The matrices that are orthogonalized one by one."""
        if not self.parts:
            return (replace(self, count=1),)
        return tuple(replace(self, rows=rows, parts=(), count=1) for rows in self.parts)


def attention_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of attention: QKV fused and the output, or those of latent attention.

    A gate of the output is a part of the fused one. Source: Megatron-LM
    core/transformer/{attention,multi_latent_attention}.py, core/optimizer/emerging_optimizers.py
    (_get_qkv_split_shapes). Left out: KV heads that tensor ranks hold twice.
    """
    h = shape.hidden
    if shape.latent:
        keys = shape.heads * (shape.qk_nope + shape.v_head)
        query = (
            (Matrix(shape.q_rank, h), Matrix(shape.q_width, shape.q_rank, cut="rows"))
            if shape.q_rank
            else (Matrix(shape.q_width, h, cut="rows"),)
        )
        return (
            *query,
            Matrix(shape.kv_rank + shape.qk_rope, h),
            Matrix(keys, shape.kv_rank, cut="rows"),
            Matrix(h, shape.v_width, cut="columns"),
        )
    pair: tuple[int, ...] = (shape.kv_width, shape.kv_heads * shape.v_dim)
    pair = () if shape.kv_shared else pair[:1] if shape.keys_as_values else pair
    gate = (shape.gate_width,) if shape.gate_width else ()
    parts = (shape.q_width, *gate, *pair)
    return (
        Matrix(sum(parts), h, cut="rows", parts=parts),
        Matrix(h, shape.v_width, cut="columns"),
    )


def mlp_matrices(shape: ModelShape, width: int) -> tuple[Matrix, ...]:
    """Return the two matrices of an MLP: gate and up projection are one; none for width 0."""
    return _two_matrices(shape, shape.hidden, width)


def _two_matrices(shape: ModelShape, outer: int, width: int) -> tuple[Matrix, ...]:
    if not width:
        return ()
    up = (2 if shape.gated else 1) * width
    return Matrix(up, outer, cut="rows"), Matrix(outer, width, cut="columns")


def dense_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of a dense layer."""
    return attention_matrices(shape) + mlp_matrices(shape, shape.ffn)


def expert_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices behind the attention of an expert layer.

    Shared experts, router, the two projections around latent experts, each routed expert.
    Source: Megatron-LM core/transformer/moe/moe_layer.py (fc1_latent_proj, fc2_latent_proj).
    """
    h, latent = shape.hidden, shape.moe_latent
    router = (Matrix(shape.n_experts, h),) if shape.n_experts > 1 else ()
    around = (Matrix(latent, h), Matrix(h, latent)) if latent else ()
    experts = tuple(
        replace(one, count=shape.n_experts, is_routed=True)
        for one in _two_matrices(shape, shape.expert_hidden, shape.expert_ffn)
    )
    return mlp_matrices(shape, shape.shared_ffn) + router + around + experts


def moe_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of an expert layer: attention and what stands behind it."""
    return attention_matrices(shape) + expert_matrices(shape)


def mtp_matrix(shape: ModelShape) -> Matrix:
    """Return the projection of a module of multi-token prediction, beside its layer."""
    return Matrix(shape.hidden, 2 * shape.hidden, cut="rows")
