"""What torchtitan refuses. Codes: TTN1xx degrees."""

from searches.frameworks.common import dense_without_experts, heads_divide
from searches.frameworks.rule import FrameworkRule

RULES: tuple[FrameworkRule, ...] = (
    heads_divide("TTN101", "torchtitan", "model code"),
    dense_without_experts("TTN109", "torchtitan", "model code"),
)
"""All rules of torchtitan."""
