"""What Megatron-Bridge refuses: what Megatron-LM refuses, whose configurations it builds.

Rule MBRnnn is MLMnnn seen from a recipe, which says all fields, also those without a flag; its
`versions` are those of the megatron-core that a release of Megatron-Bridge goes with
(`Release.core`).
"""

from dataclasses import replace

import numpy as np

from costmodels.axes import AXES
from costmodels.optimizers.records import BY_MATRIX, OPTIMIZERS
from searches.frameworks.case import Bools, Case
from searches.frameworks.megatron.layer_kinds import LAYER_KIND_RULES, is_hybrid
from searches.frameworks.megatron.layouts import LAYOUT_RULES, NO_FLAG
from searches.frameworks.megatron.modes import MODE_LAYOUT_RULES
from searches.frameworks.registry import BUILT_IN
from searches.frameworks.rule import FrameworkRule, applies

HYBRID_PROVIDER = "megatron/bridge/models/hybrid/hybrid_provider.py, HybridModelProvider"


def _graphs_whole(c: Case) -> Bools:
    full = AXES["cuda_graph"].code("full_iteration")
    return np.asarray(c.switch("cuda_graph") == full)


HYBRID_RULES: tuple[FrameworkRule, ...] = (
    FrameworkRule(
        "MBR720",
        "bridge",
        "virtual stages of a hybrid model",
        "start",
        f"{HYBRID_PROVIDER}.provide",
        lambda c: is_hybrid(c.model) & (c.vpp > 1),
        lambda c: f"vpp {c.vpp}: hybrid models have no virtual pipeline stages",
        "vpp 1, or framework megatron",
    ),
    FrameworkRule(
        "MBR721",
        "bridge",
        "what the provider of hybrid models has no field for",
        "start",
        HYBRID_PROVIDER,
        lambda c: is_hybrid(c.model) & (c.model.latent | (c.zero == 3) | _graphs_whole(c)),
        "layers: its provider of hybrid models has neither latent attention, nor weights that"
        " start on the meta device (ZeRO-3), nor graphs of whole iterations",
        "framework megatron, or zero 2, or another cuda_graph",
    ),
)
"""What its own provider of hybrid models refuses."""
OF_MEGATRON = tuple(
    replace(rule, code=rule.code.replace("MLM", "MBR"), framework="bridge")
    for rule in (*LAYOUT_RULES, *MODE_LAYOUT_RULES, *LAYER_KIND_RULES)
    if rule.code != NO_FLAG
    and any(applies(rule, one.rules_version) for one in BUILT_IN["bridge"].releases)
)
"""Those that Megatron-LM has too."""
RULES: tuple[FrameworkRule, ...] = (
    *OF_MEGATRON,
    *HYBRID_RULES,
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
