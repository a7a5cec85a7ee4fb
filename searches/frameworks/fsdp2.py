"""What PyTorch FSDP2 through Accelerate refuses. Codes: ACC1xx degrees."""

from searches.frameworks.common import dense_without_experts, heads_divide
from searches.frameworks.rule import FrameworkRule

RULES: tuple[FrameworkRule, ...] = (
    heads_divide("ACC101", "fsdp2", "model code"),
    dense_without_experts("ACC109", "fsdp2", "model code"),
)
"""All rules of PyTorch FSDP2 through Accelerate."""
