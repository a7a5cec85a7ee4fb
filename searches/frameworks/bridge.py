"""What Megatron-Bridge refuses: what Megatron-LM refuses, whose configurations it builds.

Rule MBRnnn is MLMnnn seen from a recipe; its `versions` are those of the megatron-core that a
release of Megatron-Bridge goes with (`Release.core`).
"""

from dataclasses import replace

from searches.frameworks.megatron import layouts as megatron
from searches.frameworks.registry import BUILT_IN
from searches.frameworks.rule import FrameworkRule, applies

RULES: tuple[FrameworkRule, ...] = tuple(
    replace(rule, code=rule.code.replace("MLM", "MBR"), framework="bridge")
    for rule in megatron.LAYOUT_RULES
    if any(applies(rule, one.rules_version) for one in BUILT_IN["bridge"].releases)
)
"""All rules of Megatron-Bridge, those of any release that is known."""
