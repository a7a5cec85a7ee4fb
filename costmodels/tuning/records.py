"""What is trained of a model: all of it, or adapters beside its frozen weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PRETRAIN, SFT, LORA, QLORA, DPO = "pretrain", "sft", "lora", "qlora", "dpo"
TASKS = (PRETRAIN, SFT, LORA, QLORA, DPO)
"""`pretrain`, `sft` and `dpo` train all weights, `lora` and `qlora` adapters alone."""
REFERENCES = ("none", "memory", "precomputed")
"""Of preferences: none, a frozen model that runs forward too, or its answers from before."""

NF4_BLOCK, SCALE_BLOCK = 64, 256
"""Weights that share a scale, and scales that share one of their own (double quantization)."""


@dataclass(frozen=True, slots=True)
class BaseStorage:
    """How the frozen weights of linear layers are held; the others are in 16 bits."""

    title: str
    weight_bytes: float
    is_quantized: bool


BASES: Mapping[str, BaseStorage] = MappingProxyType(
    {
        "bf16": BaseStorage("16 bits", 2.0, False),
        "int8": BaseStorage("int8, one scale a row", 1.0, True),
        "nf4": BaseStorage(
            "NF4, scales quantized again",
            0.5 + (1.0 + 4.0 / SCALE_BLOCK) / NF4_BLOCK,
            True,
        ),
        "nf4-plain": BaseStorage("NF4, scales in fp32", 0.5 + 4.0 / NF4_BLOCK, True),
    }
)
"""By name. NF4: 4 bits a weight and a scale for 64 of them, in fp32 (0.5 bit a weight) or 8 bits
with a second one in fp32 for 256 (0.127 bit). Left out: the scales of int8, 4 bytes a row.
Source: Dettmers et al. 2023 (QLoRA), sections 2 and 3; Dettmers et al. 2022 (LLM.int8())."""


OTHER_BYTES = 2.0
"""Of a frozen parameter in no linear layer of the body: embeddings, norms, head, router."""


@dataclass(frozen=True, slots=True)
class TuningJob:
    """Adapters of low rank (LoRA) beside frozen weights: y = W x + (alpha / r) B A x."""

    rank: int
    """r: rows of A, columns of B."""
    targets: tuple[str, ...]
    """Linear layers with adapters, by their names in `costmodels.tuning.targets`."""
    alpha: float = 32.0
    """Scale of the adapters times their rank; it costs nothing."""
    dropout: float = 0.0
    """Of the adapters' inputs; with any the masks and the inputs after it are kept."""
    base: str = "bf16"
    """Key of `BASES`."""

    @property
    def storage(self) -> BaseStorage:
        """How frozen linear layers are held."""
        return BASES[self.base]
