"""What Megatron-Bridge refuses: what Megatron-LM refuses, whose configurations it builds.

Rule MBRnnn is MLMnnn seen from a recipe, which says all fields, also those without a flag; its
`versions` are those of the megatron-core that a release of Megatron-Bridge goes with
(`Release.core`).
"""

from dataclasses import replace

from costmodels.optimizers.records import BY_MATRIX, OPTIMIZERS
from searches.frameworks.megatron.layouts import LAYOUT_RULES, NO_FLAG
from searches.frameworks.megatron.modes import MODE_LAYOUT_RULES
from searches.frameworks.registry import BUILT_IN
from searches.frameworks.rule import FrameworkRule, applies

OF_MEGATRON = tuple(
    replace(rule, code=rule.code.replace("MLM", "MBR"), framework="bridge")
    for rule in (*LAYOUT_RULES, *MODE_LAYOUT_RULES)
    if rule.code != NO_FLAG
    and any(applies(rule, one.rules_version) for one in BUILT_IN["bridge"].releases)
)
"""Those that Megatron-LM has too."""
RULES: tuple[FrameworkRule, ...] = (
    *OF_MEGATRON,
    FrameworkRule(
        "MBR432",
        "bridge",
        "whole matrices in shards",
        "planner",
        "megatron/bridge/training/optim.py, setup_optimizer",
        lambda c: (
            (OPTIMIZERS[c.job.optimizer].sharding == BY_MATRIX and not c.settings) & (c.zero == 1)
        ),
        lambda c: (
            f"optimizer {c.job.optimizer} with ZeRO-1: dist_{c.job.optimizer} runs without the"
            " overlap of reductions and gathers that is priced"
        ),
        "zero 0, or framework megatron",
    ),
)
"""All rules of Megatron-Bridge, those of any release that is known."""
