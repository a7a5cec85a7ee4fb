"""What an answer says of one job over several pools. Seconds, bytes, US dollars, fractions."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf
from typing import Any

from planner.documents import LibraryAnswer
from planner.errors import SearchError


@dataclass(frozen=True, slots=True)
class JoinedStage:
    """One pipeline stage; times of one micro-batch, bytes of one of its devices."""

    pool: str
    layers: int
    tp: int
    cp: int
    ep: int
    recompute: str
    """`none`, `selective` or `full`."""
    forward_s: float
    backward_s: float
    states_bytes: float
    activation_bytes: float
    other_bytes: float
    peak_bytes: float
    usable_bytes: float

    @property
    def time_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def degrees(self) -> tuple[object, ...]:
        """What stages have in common that a table shows in one row."""
        return self.pool, self.tp, self.cp, self.ep, self.recompute


@dataclass(frozen=True, slots=True)
class JoinedKind:
    """Pipelines that are alike."""

    pools: tuple[str, ...]
    """In model order."""
    n_pipelines: int
    mbs: int
    n_micro: int
    n_sequences: int
    """Of all its pipelines, in a step."""
    share: float
    """Of the global batch."""
    step_time_s: float
    time: Mapping[str, float]
    """The step by term, seconds: compute, bubble, messages, straggle, sync, exchange, update,
    fixed."""
    stages: tuple[JoinedStage, ...]


@dataclass(frozen=True, slots=True)
class JoinedLink:
    """What a plan sends over the link between two pools."""

    between: tuple[str, str]
    bytes: float
    """In a step, both directions."""
    usd: float
    """Price of them."""
    bandwidth_bytes_per_s: float
    wan: bool


@dataclass(frozen=True, slots=True)
class JoinedPlan(LibraryAnswer):
    """One plan over several pools."""

    rank: int
    plan_id: str
    step_time_s: float
    step_time_p10_s: float
    step_time_p90_s: float
    """Of the 80 % interval of jobs that resemble nothing measured."""
    tokens_per_s: float
    zero: int
    devices: Mapping[str, int]
    """In use, by pool; a pool that is left out is not named."""
    kinds: tuple[JoinedKind, ...]
    links: tuple[JoinedLink, ...]
    runs_on: tuple[str, ...]
    """Frameworks that have what it takes."""
    missing: tuple[str, ...]
    """What of it no framework has; none where one runs it."""
    goodput_frac: float
    usd_per_million_tokens: float | None
    """With traffic; None where a pool in use states no price."""
    energy_j_per_token: float | None
    expected_s: float | None
    """Wall-clock time of the run, failures of all pools in use included; None without tokens."""
    cost_usd: float | None
    """Of the run, with traffic; None without its tokens or a price of a pool in use."""
    shard: int = 1
    """Pipelines that share weights, gradients and optimizer as one replica (ZeRO 3); 1 where each
    holds its own."""

    @property
    def n_devices(self) -> int:
        """Devices of all pools."""
        return sum(self.devices.values())

    @property
    def is_sharded(self) -> bool:
        """Whether its replicas shard everything (ZeRO 3)."""
        return self.zero == SHARDED_ZERO

    def to_json(self) -> dict[str, Any]:
        """Return it with the field names of the result schema."""
        return _without_shard(dict(_plain(asdict(self))))


@dataclass(frozen=True, slots=True)
class PoolWorth:
    """What one pool adds."""

    pool: str
    alone_s: float | None
    """Step of the best plan on it alone; None where nothing fits."""
    alone_plan_id: str
    without_s: float | None
    """Step of the best plan over all other pools; None where nothing fits, or none is left."""
    is_used: bool
    """Whether the best plan uses it."""


@dataclass(frozen=True, slots=True)
class LinkWorth:
    """From which bandwidth on a link pays: with more, a plan over it beats all without it."""

    between: tuple[str, str]
    stated_bytes_per_s: float
    from_bytes_per_s: float | None
    """None where no bandwidth is enough."""


@dataclass(frozen=True, slots=True)
class Together(LibraryAnswer):
    """The answer for one job over several pools, beside the plans on each pool alone."""

    joined: tuple[str, ...]
    """Pools that plans may use together."""
    merged: Mapping[str, tuple[str, ...]]
    """Pools of one part on one fabric that are planned as one: its name, and theirs."""
    alone: Mapping[str, str]
    """Pools that are planned alone, and why."""
    pays: bool
    """Whether the first plan over several pools is better than the best on one."""
    plans: tuple[JoinedPlan, ...]
    """The best first."""
    bound_s: float | None
    """No plan over the joined pools has a shorter step; None where no plan fits or none is
    joined."""
    gap: float | None
    """(best - bound) / best of the step time."""
    complete: bool
    worth: tuple[PoolWorth, ...]
    links: tuple[LinkWorth, ...]
    objective: str = "step_time"
    """What `plans` are ranked by."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """What they keep: `deadline_s`, `step_limit_s`, `budget_usd`."""
    n_missed: int = 0
    """Plans that were found, fit, and do not keep the limits."""
    nearest: Mapping[str, float] = field(default_factory=dict)
    """By limit that no plan found keeps: the least value that one does, other limits aside."""
    cannot: tuple[str, ...] = ()
    """Limits that the bound proves no plan over the joined pools to keep."""

    @property
    def proven(self) -> bool:
        """Whether no plan is faster than the best by more than rounding."""
        return self.complete and self.gap is not None and self.gap <= LEAST_GAP

    def to_json(self) -> dict[str, Any]:
        """Return it with the field names of the result schema."""
        data = _plain(asdict(self))
        plans = [_without_shard(plan) for plan in data["plans"]]
        return {**data, "plans": plans, "proven": self.proven}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Together":
        """Return what `to_json` wrote; `SearchError` for what it did not write."""
        try:
            return cls._read(data)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SearchError(
                "the plans over several pools of the answer cannot be read: edited by hand?",
                "solve again",
            ) from None

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> "Together":
        return cls(
            **{
                **_own(cls, data),
                "joined": tuple(data["joined"]),
                "merged": {name: tuple(x) for name, x in data["merged"].items()},
                "plans": tuple(_plan(x) for x in data["plans"]),
                "cannot": tuple(data["cannot"]),
                "worth": tuple(PoolWorth(**x) for x in data["worth"]),
                "links": tuple(
                    LinkWorth(**{**x, "between": tuple(x["between"])}) for x in data["links"]
                ),
            }
        )


SHARDED_ZERO = 3
"""Stage of ZeRO of plans whose replicas shard everything."""
LEAST_GAP = 1e-6
"""Share of the step time that counts as rounding."""

NARROWEST = 1e6
"""Least bandwidth of a link that is looked at, bytes/s: a plan that pays there pays at any."""


def _without_shard(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a plan; `shard` stands in those of sharded replicas alone."""
    return {k: x for k, x in plan.items() if k != "shard" or plan["zero"] == SHARDED_ZERO}


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < inf


def _own(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: data[one.name] for one in fields(kind)}


def _plain(value: Any) -> Any:
    """Return nested values as JSON has them: lists, and whole bytes."""
    if isinstance(value, Mapping):
        return {
            key: round(x) if key.endswith("bytes") and x is not None else _plain(x)
            for key, x in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    return value


def _plan(data: Mapping[str, Any]) -> JoinedPlan:
    """Return a plan; `ValueError` for one without a step time, kinds of pipelines or stages."""
    steps_s = [data["step_time_s"], *(x["step_time_s"] for x in data["kinds"])]
    is_whole = len(steps_s) > 1 and all(x["stages"] for x in data["kinds"])
    if not is_whole or not all(_is_time(x) for x in steps_s):
        raise ValueError(steps_s)
    kinds = tuple(
        JoinedKind(
            **{
                **x,
                "pools": tuple(x["pools"]),
                "stages": tuple(JoinedStage(**stage) for stage in x["stages"]),
            }
        )
        for x in data["kinds"]
    )
    links = tuple(JoinedLink(**{**x, "between": tuple(x["between"])}) for x in data["links"])
    own = {
        "runs_on": tuple(data["runs_on"]),
        "missing": tuple(data["missing"]),
        "shard": max(1, data.get("shard", 1)),
    }
    return JoinedPlan(**{**data, **own, "kinds": kinds, "links": links})
