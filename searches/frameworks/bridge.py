"""What Megatron-Bridge refuses: what Megatron-LM refuses, whose configurations it builds.

Rule MBRnnn is MLMnnn seen from a recipe, which says all fields, also those without a flag.
"""

from dataclasses import replace

from searches.frameworks.megatron import layouts as megatron
from searches.frameworks.rule import FrameworkRule

RULES: tuple[FrameworkRule, ...] = tuple(
    replace(rule, code=rule.code.replace("MLM", "MBR"), framework="bridge")
    for rule in megatron.LAYOUT_RULES
    if rule.code != megatron.NO_FLAG
)
"""All rules of Megatron-Bridge."""
