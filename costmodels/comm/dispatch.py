"""How tokens reach their experts: messages, buffers and multiprocessors of each dispatcher."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import DISPATCHERS
from costmodels.comm.collectives import AllToAllBytes, collective_s
from costmodels.comm.placement import Group, place_group
from costmodels.comm.tensor_parallel import tp_collective_s
from costmodels.modes import ModeRows
from costmodels.problem import Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]

INSIDE_FRAC = 0.75
"""Share of the ring rate inside a domain that an all-to-all reaches: DeepEP's 8 H100 exchange 282
GB/s of 371 (aiconfigurator's tables), nccl-tests on one node 0.68 to 0.79."""
OUTSIDE_FRAC = 0.9
"""The same outside it: 33 to 51 GB/s of 48.5 in the same tables, 2 and 4 nodes."""
DEEPEP_SMS = 20
"""Multiprocessors that DeepEP's kernels take (`--moe-flex-dispatcher-num-sms` unset)."""
DEEPEP_NODE = 8
"""Ranks on one NVLink of DeepEP's groups (csrc/legacy/config.hpp, NUM_MAX_NVL_PEERS)."""
DEEPEP_SENT_CHUNKS = 128
"""Tokens of a channel's buffer to another node, each way."""
HYBRIDEP_SMS = (24, 8)
"""Multiprocessors of HybridEP's kernels in one NVLink domain, and over several (its defaults,
csrc/hybrid_ep/config.cuh)."""
DEDUPLICATED = ("deepep", "hybridep")
"""Dispatchers that send a token once to a node or domain, and once to a rank inside it."""


def with_dispatcher(
    problem: Problem, modes: ModeRows, of_name: Mapping[str, Callable[[], Floats]]
) -> Floats:
    """Return a value that depends on the dispatcher, computed only for those that are in use.

    A mode without a dispatcher of its own has that of the stack (`StackProfile.dispatcher`).
    """
    codes = _codes(problem, modes)
    used = [DISPATCHERS[code] for code in np.unique(codes).tolist()] or [problem.stack.dispatcher]
    result = of_name[used[0]]()
    for name in used[1:]:
        result = np.where(codes == DISPATCHERS.index(name), of_name[name](), result)
    return result


def _codes(problem: Problem, modes: ModeRows) -> Ints:
    """Return the dispatcher of each mode, its own or that of the stack, as an index."""
    codes = modes.codes("dispatcher")
    return np.where(codes == 0, DISPATCHERS.index(problem.stack.dispatcher), codes)


def has_dispatcher(problem: Problem, modes: ModeRows, name: str) -> Bools:
    """Return which modes bring tokens to experts by a dispatcher, named or the stack's."""
    return np.asarray(_codes(problem, modes) == DISPATCHERS.index(name))


def dispatcher_of(problem: Problem, modes: ModeRows) -> str:
    """Return the dispatcher of the only one of some modes."""
    return DISPATCHERS[_codes(problem, modes).item()]


class Degrees(NamedTuple):
    """Over how many ranks experts and attention are split."""

    tp: Ints
    sp: Ints
    ep: Ints
    etp: Ints


@lru_cache(maxsize=4096)
def distinct_units(
    n_experts: int, top_k: int, n_groups: int, top_groups: int, n_units: int
) -> float:
    """Return in how many of `n_units` equal shares of the experts a token's experts lie, expected.

    Experts are drawn evenly: top_k of those in top_groups groups, themselves drawn evenly. A share
    is a part of a group or several whole groups.

    >>> round(distinct_units(256, 8, 1, 1, 8), 2)  # 8 nodes without limit: 8 (1 - (7/8)^8)
    5.29
    >>> round(distinct_units(256, 8, 8, 4, 8), 2)  # limited to 4 of them
    3.63
    """
    size = n_experts // n_groups
    pool = top_groups * size
    ways = comb(pool, top_k)
    if n_units >= n_groups:
        missed = comb(pool - n_experts // n_units, top_k) / ways
        return n_units * top_groups / n_groups * (1 - missed)
    per_unit = n_groups // n_units
    hit = 0.0
    for drawn in range(1, min(per_unit, top_groups) + 1):
        chance = comb(per_unit, drawn) * comb(n_groups - per_unit, top_groups - drawn)
        missed = comb(max(0, pool - drawn * size), top_k) / ways
        hit += chance / comb(n_groups, top_groups) * (1 - missed)
    return n_units * hit


def _distinct_units(problem: Problem, units: Floats) -> Floats:
    """Return `distinct_units` of the model for many numbers of shares, each computed once."""
    shape = problem.shape
    key = (shape.n_experts, shape.top_k, shape.n_groups, shape.top_groups)
    values, place = np.unique(np.asarray(units, dtype=np.float64), return_inverse=True)
    of_value = np.array([distinct_units(*key, max(1, round(value))) for value in values.tolist()])
    return np.asarray(of_value[place].reshape(np.shape(units)))


def distinct_copies(problem: Problem, ep: Ints) -> Floats:
    """Return on how many of ep ranks a token has an expert, expected (`distinct_units`)."""
    return _distinct_units(problem, np.asarray(ep, dtype=np.float64))


def expert_group(problem: Problem, ep: Ints, etp: Ints) -> Group:
    """Return the placement of expert-parallel groups: ep ranks, etp apart."""
    return place_group(ep, etp, problem.pool, problem.fabric)


def sent_copies(problem: Problem, group: Group, modes: ModeRows) -> tuple[Floats, Floats]:
    """Return the copies of a token that leave its device (inside the domain, outside it).

    alltoall: of k copies to evenly drawn experts, k (g - 1)/P inside and k (P - g)/P outside, g
    of the P ranks in a domain; two experts on one rank take two copies, and node-limited routing
    changes nothing. deepep, hybridep: one copy to every other domain that holds an expert of the
    token, from where one goes to every rank that does (`distinct_units`). allgather: P - 1, g - 1
    of them inside.
    Source: Megatron-LM core/transformer/moe/token_dispatcher.py; DeepEP.
    """
    shape, ranks, inside = problem.shape, group.n_ranks, group.ranks_per_domain

    def copies(others: Floats, once: Callable[[], Floats]) -> Floats:
        of_name: dict[str, Callable[[], Floats]] = {
            "alltoall": lambda: others / ranks * shape.top_k,
            "allgather": lambda: others,
            **dict.fromkeys(DEDUPLICATED, once),
        }
        return with_dispatcher(problem, modes, of_name)

    return (
        copies(inside - 1.0, lambda: _distinct_units(problem, ranks) * (ranks - 1) / ranks),
        copies(
            ranks - inside,
            lambda: _distinct_units(problem, ranks / inside) * (ranks - inside) / ranks,
        ),
    )


def token_exchange(
    problem: Problem, copy_bytes: Floats, group: Group, modes: ModeRows
) -> AllToAllBytes:
    """Return the all-to-all of a dispatch or a combine.

    inside = copies inside n at 0.75 of B_ring, outside = copies outside n at 0.9 of B_wire;
    n = `copy_bytes`, what all tokens of a device weigh, once; copies as in `sent_copies`.
    Source of the shares: DeepEP on H100 (aiconfigurator's tables), nccl-tests.
    """
    inside, outside = sent_copies(problem, group, modes)
    return AllToAllBytes(inside * copy_bytes, outside * copy_bytes, INSIDE_FRAC, OUTSIDE_FRAC)


def dispatch_s(
    problem: Problem, tokens: Floats, load: Floats, degrees: Degrees, modes: ModeRows
) -> Floats:
    """Return the time of one dispatch, which a combine takes too, etp apart, seconds.

    `tokens` of a rank; the copies of the busiest are `load` times the mean. alltoall, deepep,
    hybridep: `token_exchange` of that; allgather: an all-gather of all tokens over ep etp ranks,
    whatever the routing (the combine is a reduce-scatter).
    """
    width = problem.job.recipe.activation_bytes * problem.shape.expert_hidden

    def exchange() -> Floats:
        group = expert_group(problem, degrees.ep, degrees.etp)
        sent = token_exchange(problem, width * tokens * load, group, modes)
        return np.asarray(collective_s("all-to-all", sent, group, problem.pool))

    def gather() -> Floats:
        ranks = degrees.ep * degrees.etp
        group = place_group(ranks, np.ones_like(ranks), problem.pool, problem.fabric)
        return tp_collective_s(problem, "all-gather", width * tokens * ranks, group)

    of_name = {"allgather": gather} | dict.fromkeys(("alltoall", *DEDUPLICATED), exchange)
    return with_dispatcher(problem, modes, of_name)


def dispatcher_buffer_bytes(
    problem: Problem, tokens: Floats, degrees: Degrees, modes: ModeRows
) -> Floats:
    """Return the buffers that a dispatcher holds for good, one set for all layers, bytes.

    T tokens a rank, n = ep etp ranks in D domains, E experts, k channels = SMs / 2:

    deepep    k min(n, 8) r (2 h + 2056), r = 256 tokens (n <= 8), 288 (to 64), 480 (96), 560
              (128), 720; over nodes of 8 also k (n / 8) 128 2 (2 h + 2072)
    hybridep  T n (2 h + 4 E/D + h/32); over several domains also T (2 h + 4 E + h/32) +
              T (D - 1) (2 h + 4 E/D + h/32) + 2 T (D - 1) (2 h + 4 E/D)

    Source: DeepEP deep_ep/buffers/legacy.py (get_dispatch_config), csrc/legacy/config.hpp; branch
    hybrid-ep, intranode.cu and internode_doca.cu (allocate). Left out: the others' transient
    buffers, which `expert_working_bytes` has.
    """
    h, n_experts = float(problem.shape.expert_hidden), float(problem.shape.n_experts)
    ranks = np.asarray(degrees.ep * degrees.etp, dtype=np.float64)
    zeros = np.zeros(np.broadcast(tokens, ranks).shape)

    def deepep() -> Floats:
        received = np.select(
            [ranks <= 8, ranks <= 64, ranks <= 96, ranks <= 128], [256.0, 288.0, 480.0, 560.0], 720
        )
        near = np.minimum(ranks, DEEPEP_NODE) * received * (2.0 * h + 2056.0)
        far = (ranks / DEEPEP_NODE) * DEEPEP_SENT_CHUNKS * 2.0 * (2.0 * h + 2072.0)
        far = np.where(ranks > DEEPEP_NODE, far, 0.0)
        return DEEPEP_SMS / 2.0 * np.where(ranks > 1, near + far, 0.0) + zeros

    def hybridep() -> Floats:
        all_ranks = degrees.ep * degrees.etp
        group = place_group(all_ranks, np.ones_like(all_ranks), problem.pool, problem.fabric)
        domains = np.asarray(group.n_domains, dtype=np.float64)
        near = tokens * ranks * (2.0 * h + 4.0 * n_experts / domains + h / 32.0)
        others = domains - 1.0
        of_domain = 2.0 * h + 4.0 * n_experts / domains
        far = tokens * (2.0 * h + 4.0 * n_experts + h / 32.0)
        far = far + tokens * others * (of_domain + h / 32.0) + 2.0 * tokens * others * of_domain
        return np.where(ranks > 1, near + np.where(domains > 1, far, 0.0), 0.0)

    of_name = {"deepep": deepep, "hybridep": hybridep}
    none = dict.fromkeys(("alltoall", "allgather"), lambda: zeros)
    return with_dispatcher(problem, modes, of_name | none)


def taken_share(problem: Problem, degrees: Degrees, modes: ModeRows) -> Floats:
    """Return the share of compute that an exchange takes while it runs beside it (0-1).

    SMs of its kernels over those of the device; NCCL's all-to-all and all-gather as any other
    traffic (`StackProfile.overlap_slowdown`).
    """
    n_sms, slowdown = float(problem.pool.accelerator.n_sms), problem.stack.overlap_slowdown
    plain = np.full(np.shape(degrees.ep), slowdown)

    def hybridep() -> Floats:
        group = expert_group(problem, degrees.ep, degrees.etp)
        return np.where(np.asarray(group.n_domains) > 1, HYBRIDEP_SMS[1], HYBRIDEP_SMS[0]) / n_sms

    of_name = {
        "deepep": lambda: np.full(np.shape(degrees.ep), DEEPEP_SMS / n_sms),
        "hybridep": hybridep,
        **dict.fromkeys(("alltoall", "allgather"), lambda: plain),
    }
    return with_dispatcher(problem, modes, of_name)
