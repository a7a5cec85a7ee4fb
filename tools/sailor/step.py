"""What Sailor's simulator says of a plan, written anew from its formulas.

Tests hold it to the simulator's own answers, which are kept beside the plans. With stages i of p,
D replicas each, m = ceil(batch / (mbs D)) micro-batches:

    T = (m - 1) max (t_i + c_i) + sum c_i + sum t_i + update + sync

t_i forward and backward of the slowest replica, c_i the messages of a stage, sync the longest ring
over the replicas of a stage (buckets of 5e8 bytes), update that of the slowest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tools.sailor.profiles import BYTES_PER_VALUE, Data, End, Floats, Links, Profile

BUCKET_BYTES = 5e8
STATE_BYTES = 24.0
"""A parameter: Adam's two, weight, gradient, message, DeepSpeed's copy; 4 bytes each."""
RUNTIME_BYTES = (2e9, 3e9)
"""Without and with tensor parallelism."""


@dataclass(frozen=True, slots=True, order=True)
class Replica:
    """One copy of one stage."""

    part: str
    zone: str
    tp: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers `start` to `end` (exclusive) and who holds them."""

    start: int
    end: int
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan as Sailor takes it: every stage has as many replicas."""

    mbs: int
    stages: tuple[Stage, ...]

    @property
    def n_replicas(self) -> int:
        """Copies of the model."""
        return len(self.stages[0].replicas)

    def devices(self) -> dict[tuple[str, str], int]:
        """Return the devices in use by part and zone."""
        used: dict[tuple[str, str], int] = {}
        for stage in self.stages:
            for x in stage.replicas:
                used[x.part, x.zone] = used.get((x.part, x.zone), 0) + x.tp
        return used

    def to_sailor(self) -> dict[str, Any]:
        """Return it as Sailor's simulator reads it."""
        used: dict[str, int] = {}
        for (part, _), n in self.devices().items():
            used[part] = used.get(part, 0) + n
        pipeline = {
            "num_stages": len(self.stages),
            "layers_per_stage": [list(range(x.start, x.end)) for x in self.stages],
            "dp": [self.n_replicas] * len(self.stages),
            "tmp_per_stage": [
                [[[[x.part, x.tp, x.zone]], x.tp] for x in stage.replicas] for stage in self.stages
            ],
        }
        return {"pipeline_list": [pipeline], "mbs": self.mbs, "used_gpus": used}


def plan_from_sailor(document: dict[str, Any]) -> Plan:
    """Return a plan of Sailor's with one pipeline; `ValueError` for one with several."""
    if len(document["pipeline_list"]) != 1:
        raise ValueError("the plan has several pipelines: this formula has one")
    pipeline = document["pipeline_list"][0]
    stages = []
    for layers, own in zip(pipeline["layers_per_stage"], pipeline["tmp_per_stage"], strict=True):
        replicas = tuple(Replica(vms[0][0], vms[0][2], tp) for vms, tp in own)
        stages.append(Stage(layers[0], layers[-1] + 1, replicas))
    return Plan(document["mbs"], tuple(stages))


@dataclass(frozen=True, slots=True)
class Score:
    """What the formulas say of a plan."""

    step_s: float
    cost: float
    """US dollars a step, egress with it."""
    fits: bool


def ring_s(size_bytes: Floats, n: int, links: Links, ends: tuple[End, End]) -> Floats:
    """Return the seconds of all-reduces of `n` in a ring, bucket by bucket."""
    size = np.asarray(size_bytes, dtype=np.float64)
    if n <= 1:
        return np.zeros_like(size)
    full, rest = np.divmod(size, BUCKET_BYTES)
    bucket_s = links.message_s(np.array(BUCKET_BYTES / n), *ends)
    return np.asarray(2.0 * (n - 1) * (full * bucket_s + links.message_s(rest / n, *ends)))


def micro_batches(batch: int, mbs: int, n_replicas: int) -> int:
    """Return the micro-batches of every replica."""
    return math.ceil(batch / (mbs * n_replicas))


def stage_bytes(profile: Profile, stage: tuple[int, int], tp: int, mbs: int, held: int) -> float:
    """Return the memory of a device whose stage holds `held` micro-batches."""
    start, end = stage
    states = STATE_BYTES * float(profile.params[tp][start:end].sum())
    kept = BYTES_PER_VALUE * mbs * float(profile.kept[tp][start:end].sum())
    return states + kept * held + RUNTIME_BYTES[tp > 1]


def _messages_s(plan: Plan, profile: Profile, links: Links) -> list[float]:
    """Return what each stage's messages take one micro-batch."""
    pp, results = len(plan.stages), []
    values = BYTES_PER_VALUE * plan.mbs

    def slowest(one: Stage, other: Stage, layer: int) -> float:
        size = profile.outputs[layer] * values
        pairs = set(zip(one.replicas, other.replicas, strict=True))
        ends = [((a.zone, a.part, a.tp), (b.zone, b.part, b.tp)) for a, b in pairs]
        return max(float(links.message_s(size, *x)) for x in ends)

    for i, stage in enumerate(plan.stages):
        forward = backward = 0.0
        if i < pp - 1:
            forward = slowest(stage, plan.stages[i + 1], stage.end - 1)
        if i > 0:
            backward = slowest(stage, plan.stages[i - 1], stage.start)
        if i == pp - 1:
            results.append(2.0 * backward)
        elif i == 0:
            results.append(forward if pp <= 3 else 2.0 * forward)
        else:
            results.append(forward + backward)
    return results


def sync_s(plan: Plan, profile: Profile, links: Links) -> float:
    """Return the longest all-reduce of gradients."""
    longest, n = 0.0, plan.n_replicas
    for stage in plan.stages:
        least = min(4, *(x.tp for x in stage.replicas))
        weights = BYTES_PER_VALUE * profile.params[1][stage.start : stage.end].sum()
        pairs = {((a.zone, a.part, 1), (b.zone, b.part, 1)) for a, b in pairwise(stage.replicas)}
        for ends in pairs:
            longest = max(longest, float(ring_s(weights / least, n, links, ends)))
    return longest


def egress_cost(plan: Plan, profile: Profile, links: Links) -> float:
    """Return the US dollars that a step's traffic between zones costs."""
    m = micro_batches(profile.global_batch, plan.mbs, plan.n_replicas)
    values, n, total = BYTES_PER_VALUE * plan.mbs, plan.n_replicas, 0.0

    def crossing(pairs: Sequence[tuple[Replica, Replica]]) -> float:
        return sum(links.egress_per_byte[a.zone, b.zone] for a, b in pairs)

    for one, other in pairwise(plan.stages):
        size = float(profile.outputs[one.end - 1]) * values
        there = list(zip(one.replicas, other.replicas, strict=True))
        total += m * size * (crossing(there) + crossing([(b, a) for a, b in there]))
    for stage in plan.stages:
        weights = BYTES_PER_VALUE * float(profile.params[1][stage.start : stage.end].sum())
        around = list(pairwise((*stage.replicas, stage.replicas[0])))
        total += crossing(around) * weights / n * 2.0 * (n - 1)
    return total


def score(plan: Plan, profile: Profile, data: Data) -> Score:
    """Return step time, cost and fit of a plan; `KeyError` for what was not measured."""
    pp, links = len(plan.stages), data.links
    times, updates, fits = [], [], True
    for i, stage in enumerate(plan.stages):
        kinds = {(x.part, x.tp) for x in stage.replicas}
        ways = [(part, tp, plan.mbs) for part, tp in kinds]
        times.append(max(float(profile.layer_s[w][stage.start : stage.end].sum()) for w in ways))
        updates.append(max(float(profile.update_s[w][stage.start]) for w in ways))
        for part, tp in kinds:
            size = stage_bytes(profile, (stage.start, stage.end), tp, plan.mbs, pp - i)
            fits = fits and size <= data.parts.memory_bytes[part]
    messages = _messages_s(plan, profile, links)
    m = micro_batches(profile.global_batch, plan.mbs, plan.n_replicas)
    slowest = max(a + b for a, b in zip(times, messages, strict=True))
    step_s = (m - 1) * slowest + sum(messages) + sum(times) + max(updates)
    step_s += sync_s(plan, profile, links)
    price = sum(n * data.parts.price_per_s[part] for (part, _), n in plan.devices().items())
    return Score(step_s, step_s * price + egress_cost(plan, profile, links), fits)
