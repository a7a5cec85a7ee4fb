"""What Megatron-Bridge refuses: what Megatron-LM refuses, whose configurations it builds.

Rule MBRnnn is MLMnnn seen from a recipe, which says all fields, also those without a flag; its
`versions` are those of the megatron-core that a release of Megatron-Bridge goes with
(`Release.core`).
"""

from dataclasses import replace

import numpy as np

from costmodels.axes import AXES
from costmodels.optimizers.records import BY_MATRIX, OPTIMIZERS
from costmodels.shapes import ModelShape
from searches.frameworks.case import Bools, Case
from searches.frameworks.megatron.layer_kinds import LAYER_KIND_RULES, is_hybrid
from searches.frameworks.megatron.layouts import LAYOUT_RULES, NO_FLAG
from searches.frameworks.megatron.modes import MODE_LAYOUT_RULES
from searches.frameworks.registry import BUILT_IN
from searches.frameworks.rule import FrameworkRule, applies

WAN = "megatron/bridge/diffusion/models/wan"
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


def is_wan(shape: ModelShape) -> bool:
    """Tell whether a diffusion transformer is built as its model of Wan builds one."""
    x = shape.diffusion
    return x is not None and (
        (x.cross, x.cross_norm, x.modulation, x.qk_norm, x.text_layers, x.condition)
        == (True, True, "table", "width", 2, 0)
        and (shape.gated, shape.bias, x.affine) == (False, True, False)
        and (x.channels, x.out_channels or x.channels) == (16, 16)
        and shape.head_dim * shape.heads == shape.hidden
        and not (x.pooled_width or x.guidance or x.text_norm or x.refiner_layers)
    )


WAN_RULES: tuple[FrameworkRule, ...] = (
    FrameworkRule(
        "MBR730",
        "bridge",
        "a diffusion transformer that is none of Wan's",
        "planner",
        f"{WAN}/wan_layer_spec.py, WanLayerWithAdaLN",
        lambda c: c.model.diffusion is not None and not is_wan(c.model),
        "layers: of adaln layers it has those of Wan alone: cross attention behind a norm, a table"
        " of modulation, norms of queries and keys over their width, biases, no gate in the MLP,"
        " latents of 16 channels",
        "the sizes of Wan, or framework any",
    ),
    FrameworkRule(
        "MBR731",
        "bridge",
        "sequences of latents over several ranks",
        "planner",
        f"{WAN}/wan_provider.py, qkv_format",
        lambda c: (c.model.diffusion is not None) & (c.cp > 1),
        lambda c: f"cp {c.cp}: its latents are packed (thd), and all-to-alls of heads are priced",
        "cp 1, or framework any",
    ),
    FrameworkRule(
        "MBR732",
        "bridge",
        "several samples of latents in a micro-batch",
        "planner",
        "megatron/bridge/diffusion/data/wan/wan_mock_datamodule.py, mock_batch",
        lambda c: (c.model.diffusion is not None) & (c.mbs > 1),
        lambda c: f"mbs {c.mbs}: its data packs samples into one sequence",
        "mbs 1",
        batches=True,
    ),
    FrameworkRule(
        "MBR733",
        "bridge",
        "virtual stages of a diffusion transformer",
        "planner",
        f"{WAN}/wan_provider.py, provide",
        lambda c: (c.model.diffusion is not None) & (c.vpp > 1),
        lambda c: f"vpp {c.vpp}: its ends stand on pipeline ranks, not on virtual stages",
        "vpp 1",
    ),
    FrameworkRule(
        "MBR734",
        "bridge",
        "weights of a diffusion transformer in shards",
        "planner",
        "megatron/bridge/diffusion/recipes/wan/wan.py",
        lambda c: (c.model.diffusion is not None) & ((c.zero >= 2) | (c.switch("cuda_graph") > 0)),
        "zero 2, 3 or cuda_graph: no recipe of it runs them for latents",
        "zero 1, cuda_graph off",
    ),
)
"""What its model of Wan does not run, or is not written here."""
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
    *WAN_RULES,
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
