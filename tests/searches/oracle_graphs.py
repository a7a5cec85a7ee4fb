"""What CUDA graphs leave of a layer's launches, and the memory that they hold: scalars."""

from costmodels.plans import Layout

MODULES = ("attn", "mlp", "moe_router", "moe_preprocess")
LAUNCH_S = 10e-6
"""One captured graph in one direction."""


def mode(layout: Layout, axis: str, off: str) -> str:
    """Return the value of an axis that has no field."""
    return str(dict(layout.switches).get(axis, off))


def graph(layout: Layout) -> str:
    return mode(layout, "cuda_graph", "none")


def captured(layout: Layout) -> set[str]:
    """Return the modules of a layer that are in graphs."""
    named = graph(layout)
    return {*MODULES} if named in ("layer", "full_iteration") else {*named.split("+")} - {"none"}


def graphs_s(layout: Layout, *parts: str) -> float:
    """Return the launches of a layer's graphs, both ways, one for each of some parts captured."""
    named = graph(layout)
    if named == "full_iteration":
        return 0.0
    n = 1 if named == "layer" else len(captured(layout) & {*parts})
    return 2 * n * LAUNCH_S


def dense_launch_s(layout: Layout, eager_s: float) -> float:
    """Return a dense layer's launches: six tenths are attention's, the others the MLP's."""
    inside = captured(layout)
    shares = [0.0 if "attn" in inside else 0.6, 0.0 if "mlp" in inside else 0.4]
    return eager_s * sum(shares) + graphs_s(layout, "attn", "mlp")


def expert_launch_s(layout: Layout, eager_s: float, routing_s: float, shared: bool) -> float:
    """Return an expert layer's launches without its grouped products.

    Attention 0.6; norm 0.1, which goes with the router as shared experts (the rest) do; of routing
    the router a tenth, and what prepares the dispatch a twentieth.
    """
    inside = captured(layout)
    if graph(layout) in ("layer", "full_iteration"):
        return graphs_s(layout, "attn")
    left = eager_s
    if "attn" in inside:
        left -= 0.6 * eager_s
    if "moe_router" in inside:
        left -= (0.4 if shared else 0.1) * eager_s
    share = 1 - 0.1 * ("moe_router" in inside) - 0.05 * ("moe_preprocess" in inside)
    return left + routing_s * share + graphs_s(layout, "attn", "moe_router")


def products_launch_s(layout: Layout, stack_kind: str, local: float, share: float) -> float:
    """Return the launches of six grouped products over `local` experts beyond one of each."""
    if stack_kind != "fused" or graph(layout) in ("layer", "full_iteration"):
        return 0.0
    return 6 * share * max(0.0, local - 1)


def pool_bytes(layout: Layout, temporaries: float) -> float:
    """Return the pool that the graphs reserve: a layer's temporaries once more."""
    return 0.0 if graph(layout) == "none" else temporaries
