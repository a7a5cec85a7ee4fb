"""One record per optimizer: states by group of parameters, traffic, how it is shared out.

Values of `training.optimizer`, the recipes of bytes per parameter (`costmodels.precision`), the
table of docs/optimizers.md and refusals by framework are made from `OPTIMIZERS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

FLAT, BY_MATRIX = "flat", "by-matrix"
"""How ZeRO shares states out: shards of a flat buffer, or whole matrices."""
BLOCK_OF_8_BITS = 256
"""Elements that share one fp32 scale in 8-bit states (torchao optim, block_size)."""
TP_MODES = ("duplicated", "distributed", "blockwise", "layer-sharded")
"""How a matrix that tensor parallelism cuts is orthogonalized."""
SCALAR_OPTIMIZERS = ("adam", "lion")
"""What updates embeddings, head and vectors beside Muon."""


@dataclass(frozen=True, slots=True)
class MuonOptions:
    """How Muon orthogonalizes; the section `training.muon` of a model file."""

    num_ns_steps: int = 5
    """Newton-Schulz steps."""
    tp_mode: str = "duplicated"
    """One of `TP_MODES`."""
    use_syrk: bool = False
    """Symmetric products compute one half of the result."""
    scalar_optimizer: str = "adam"
    """One of `SCALAR_OPTIMIZERS`."""
    param_layout: bool = True
    """Shards aligned to whole matrices, gradients reduce-scattered; False: gradients all-reduced,
    updated weights gathered."""
    mamba_in_proj: bool = True
    """The projection to all inputs of a Mamba-2 layer is orthogonalized whole; False: it goes to
    the scalar optimizer."""


USUAL_MUON = MuonOptions()
"""What holds where nothing is said."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What a step of an optimizer keeps and moves, beside the master copy of the weights."""

    name: str
    title: str
    matrix_bytes: float
    """States of one parameter of a hidden matrix, bytes, master copy apart; a lower bound where
    some depend on the sizes of the matrix."""
    other_bytes: float
    """The same of embeddings, head and vectors."""
    sharding: str = FLAT
    """`FLAT` or `BY_MATRIX`."""
    has_factors: bool = False
    """Second moments are one sum per row and one per column of a matrix."""
    has_preconditioners: bool = False
    """Two square matrices per side of each matrix (SOAP): factor and eigenbasis."""
    is_orthogonalized: bool = False
    """Newton-Schulz steps on the momentum of each matrix."""
    widths: tuple[str, ...] = ("fp32",)
    """Values of `optimizer_states` that it has."""
    frameworks: Mapping[str, str] = field(default_factory=dict)
    """By framework that has it: what a file of it says."""
    source: str = ""


EIGHT_BIT_BYTES = 1.0 + 4.0 / BLOCK_OF_8_BITS
"""One 8-bit state with its share of the scale."""

_RECORDS = (
    Optimizer(
        "adam",
        "Adam and AdamW",
        8.0,
        8.0,
        widths=("fp32", "bf16-moments"),
        frameworks={
            "megatron": "--optimizer adam",
            "bridge": 'OptimizerConfig(optimizer="adam")',
            "primus": "optimizer: adam",
            "deepspeed": 'optimizer.type "AdamW"',
            "torchtitan": "AdamW",
            "fsdp2": "optim adamw_torch_fused",
            "maxtext": "opt_type adamw",
            "mindspeed": "--optimizer adam",
            "automodel": "torch.optim.AdamW",
        },
        source="Kingma and Ba 2015; Loshchilov and Hutter 2019",
    ),
    Optimizer(
        "sgd",
        "SGD with momentum",
        4.0,
        4.0,
        frameworks={
            "megatron": "--optimizer sgd",
            "bridge": 'OptimizerConfig(optimizer="sgd")',
            "primus": "optimizer: sgd",
            "automodel": "torch.optim.SGD",
        },
        source="Megatron-LM core/optimizer/__init__.py (sgd_momentum)",
    ),
    Optimizer(
        "lion",
        "Lion",
        4.0,
        4.0,
        frameworks={"deepspeed": 'optimizer.type "Lion"'},
        source="Chen et al. 2023 (arXiv 2302.06675); DeepSpeed ops/lion",
    ),
    Optimizer(
        "adam-8bit",
        "Adam with 8-bit states",
        2.0 * EIGHT_BIT_BYTES,
        2.0 * EIGHT_BIT_BYTES,
        frameworks={"fsdp2": "optim adamw_torch_8bit (torchao)"},
        source="Dettmers et al. 2022 (arXiv 2110.02861); torchao optim/subclass_8bit.py",
    ),
    Optimizer(
        "adafactor",
        "Adafactor without momentum",
        0.0,
        0.0,
        has_factors=True,
        source="Shazeer and Stern 2018 (arXiv 1804.04235), section 3; torch optim/_adafactor.py. "
        "No framework here runs it on shards: torch's squares a partial norm in place, "
        "transformers' mixes tensors and shards",
    ),
    Optimizer(
        "muon",
        "Muon, with Adam or Lion for embeddings, head and vectors",
        4.0,
        8.0,
        sharding=BY_MATRIX,
        is_orthogonalized=True,
        frameworks={
            "megatron": "--optimizer muon",
            "bridge": 'OptimizerConfig(optimizer="muon")',
            "primus": "optimizer: muon",
        },
        source="Jordan et al. 2024; Liu et al. 2025 (arXiv 2502.16982); Megatron-LM "
        "core/optimizer/{layer_wise_optimizer,emerging_optimizers}.py",
    ),
    Optimizer(
        "soap",
        "SOAP, with Adam for embeddings, head and vectors",
        8.0,
        8.0,
        sharding=BY_MATRIX,
        has_preconditioners=True,
        frameworks={
            "megatron": "--optimizer soap",
            "bridge": 'OptimizerConfig(optimizer="soap")',
        },
        source="Vyas et al. 2024 (arXiv 2409.11321); Emerging-Optimizers legacy_soap/soap.py",
    ),
)
OPTIMIZERS: dict[str, Optimizer] = {record.name: record for record in _RECORDS}
"""By the name that a model file gives them."""


def scalar_bytes(optimizer: Optimizer, muon: MuonOptions) -> float:
    """Return the states of one parameter of embeddings, head and vectors, master copy apart.

    >>> scalar_bytes(OPTIMIZERS["muon"], MuonOptions(scalar_optimizer="lion"))
    4.0
    """
    if optimizer.is_orthogonalized:
        return OPTIMIZERS[muon.scalar_optimizer].other_bytes
    return optimizer.other_bytes


def least_state_bytes(optimizer: Optimizer, muon: MuonOptions) -> float:
    """Return the states that a parameter of any group has at least, bytes, master copy apart."""
    return min(optimizer.matrix_bytes, scalar_bytes(optimizer, muon))


MASTER_BYTES = 4.0
"""The fp32 weight that an update reads and writes."""


def step_bytes(optimizer: Optimizer, states: float, grad_bytes: float) -> float:
    """Return what the update of a parameter reads and writes beside its gradient, bytes.

    2 (4 + S): master copy and S bytes of states, read and written; sums over rows and columns read
    the gradient G once more.

    >>> step_bytes(OPTIMIZERS["adam"], 8.0, 4.0), step_bytes(OPTIMIZERS["muon"], 4.0, 4.0)
    (24.0, 16.0)
    """
    return 2.0 * (MASTER_BYTES + states) + grad_bytes * optimizer.has_factors


def reduces_whole(optimizer: Optimizer, muon: MuonOptions) -> bool:
    """Tell whether gradients are all-reduced where the states are sharded.

    Source: Megatron-LM core/optimizer/layer_wise_optimizer.py, without
    use_layer_wise_param_layout: DDP sums the gradients, updated weights are gathered.
    """
    return optimizer.sharding == BY_MATRIX and not muon.param_layout
