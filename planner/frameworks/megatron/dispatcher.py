"""How tokens reach their experts: what of a price with deduplicated dispatch files can carry.

A stack whose profile says so sends a token once to every node that holds one of its experts. In
megatron-core that is the flex dispatcher, over DeepEP, or over HybridEP where the NVLink of a rack
spans nodes (megatron/core/transformer/moe/token_dispatcher.py; Megatron-Bridge refuses DeepEP on
such parts, training/flex_dispatcher_backend.py). Files for other frameworks say all-to-all.
"""

from math import gcd

from costmodels.plans import Layout
from costmodels.shapes import ModelShape
from hardware.parts import Pool
from planner.frameworks.registry import framework

KERNELS_FOR = ("ampere", "hopper", "blackwell", "rubin")
"""Generations that the kernels run on."""
DEEPEP_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
"""Sizes of a group that DeepEP has settings for (deep_ep/buffer.py, get_dispatch_config)."""
DEEPEP_NODE = 8
"""Devices of a node of groups over several nodes, DeepEP's NUM_MAX_NVL_PEERS."""
STACK = "--stack megatron-core"


def is_priced(layout: Layout, shape: ModelShape, dispatch: str) -> bool:
    """Tell whether a plan is priced with fewer copies than an all-to-all sends.

    `dispatch` is `StackProfile.expert_dispatch`.
    """
    return dispatch == "deduplicated" and shape.n_experts > 1 and layout.ep > 1


def flex_backend(pool: Pool) -> str:
    """Return the backend of megatron-core's flex dispatcher for these devices."""
    part = pool.accelerator
    return "hybridep" if part.scale_up_domain > part.devices_per_node else "deepep"


def refused_dispatch(
    target: str, layout: Layout, shape: ModelShape, pool: Pool
) -> tuple[str, ...]:
    """Return why the files of a framework cannot ask for deduplicated dispatch."""
    what = "expert dispatch: priced with one copy of a token to a node"
    ranks, part = layout.ep * layout.etp, pool.accelerator
    if not framework(target).has_deduplicated_dispatch:
        own = f"--framework {target} without --stack"
        return (f"{what}, which these files do not ask for; closest: {own}",)
    if part.vendor != "NVIDIA" or not part.generation.startswith(KERNELS_FOR):
        return (f"{what}: its kernels do not run on {part.name}; closest: {STACK}",)
    if flex_backend(pool) != "deepep":
        return ()
    if shape.capacity_factor:
        return (f"{what}: DeepEP cannot pad experts to capacity; closest: {STACK}",)
    if ranks not in DEEPEP_RANKS:
        below = max((n for n in DEEPEP_RANKS if n < ranks), default=DEEPEP_RANKS[0])
        text = f"DeepEP has no setting for {ranks} ranks; closest: ep x etp {below}, or {STACK}"
        return (f"{what}: {text}",)
    if ranks > pool.devices_per_node != DEEPEP_NODE:
        text = f"DeepEP joins nodes of {DEEPEP_NODE} devices, not of {pool.devices_per_node}"
        return (f"{what}: {text}; closest: {STACK}",)
    return ()


def hybrid_environment(layout: Layout, pool: Pool) -> list[str]:
    """Return what HybridEP has to be told of the racks."""
    near = gcd(layout.ep * layout.etp, pool.scale_up_domain)
    return [
        "# HybridEP: ranks of an expert group on one NVLink, and the devices that it joins.",
        f"export NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN={near}",
        f"export NVLINK_DOMAIN_SIZE={pool.accelerator.scale_up_domain} USE_MNNVL=1",
    ]
