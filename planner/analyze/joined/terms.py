"""The terms of the step of a plan over several pools: what each is, and its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from costmodels.mixed.prices import MixedPrice


@dataclass(frozen=True, slots=True)
class JoinedTerm:
    """One term of the step of one kind of pipelines."""

    title: str
    equation: str
    symbols: str
    source: str
    """Function that computes it."""


_PRICES = "costmodels.mixed.prices"
TERM_TEXTS: Mapping[str, JoinedTerm] = {
    "compute": JoinedTerm(
        "micro-batches on the slowest stage",
        "m max_r t_r",
        "m micro-batches, t_r forward and backward of stage r",
        f"{_PRICES}.price",
    ),
    "bubble": JoinedTerm(
        "filling and draining the pipeline",
        "sum_r t_r - max_r t_r",
        "t_r forward and backward of stage r",
        f"{_PRICES}.price",
    ),
    "messages": JoinedTerm(
        "messages between stages that the pipeline waits for",
        "c max hop",
        "c = 2 (p - 1) + 2 (m - 1 - ceil((m - 1)/p)), hop the slowest boundary",
        f"{_PRICES}.hop_s",
    ),
    "straggle": JoinedTerm(
        "the slowest node of all pools in use",
        "(S - 1) (compute + bubble + messages)",
        "S straggler factor of the nodes in use",
        "costmodels.step.straggler_factor",
    ),
    "sync": JoinedTerm(
        "gradients and weights among pipelines of a kind, not hidden",
        "e_grads + e_weights + slowdown (hidden) + tied",
        "e = min(c, max(c/n, c - w)): transfer c in n pieces beside window w",
        f"{_PRICES}.sync_s",
    ),
    "exchange": JoinedTerm(
        "gradients between pools whose pipelines hold the same layers",
        "2 (U - 1)/U max(g/(D B_nic), G/B_link) + 2 (U - 1) latency",
        "U groups, g gradients of a stage on a device, D pipelines, G gradients of shared layers",
        f"{_PRICES}.exchanges_s",
    ),
    "update": JoinedTerm(
        "optimizer of the stage that takes longest",
        "update / D + clear",
        "D pipelines of the kind with ZeRO 1, 1 with ZeRO 0",
        f"{_PRICES}.price",
    ),
    "fixed": JoinedTerm(
        "what every step takes", "fixed", "of the software stack", "costmodels.stacks"
    ),
}
"""By name, in the order of the step."""


def term_values(priced: MixedPrice, term: str) -> list[dict[str, Any]]:
    """Return the value of a term by kind of pipelines, with the stages that it comes of."""
    of_stages = {
        "compute": lambda x: x.forward_s + x.backward_s,
        "bubble": lambda x: x.forward_s + x.backward_s,
        "sync": lambda x: x.sync_s,
        "exchange": lambda x: x.exchange_s,
        "update": lambda x: x.update_s,
    }
    values = []
    for i, kind in enumerate(priced.kinds, 1):
        if term == "messages":
            parts = list(kind.hops_s)
        else:
            parts = [of_stages[term](x) for x in kind.stages] if term in of_stages else []
        values.append({"kind": i, "time_s": getattr(kind, f"{term}_s"), "by_stage_s": parts})
    return values
