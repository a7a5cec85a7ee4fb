"""Collective explorer: eight collectives, textbook algorithms, and what the cost model expects."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from costmodels.comm.collectives import chosen_algorithm, collective_s
from planner.learn import fields
from planner.learn.fields import BadInput
from planner.learn.machines import DEFAULT_DEVICE, device, devices, group_of
from planner.learn.results import (
    Calculator,
    CalculatorResult,
    Difference,
    NamedTable,
    Number,
    Preset,
    shown,
    sig,
)
from planner.learn.writeups import GUIDE, MODELER
from planner.render.report.answers import AnswerTable

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

COLLECTIVES = (
    "broadcast",
    "scatter",
    "gather",
    "all-gather",
    "reduce",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
)
WAYS = ("naive", "tree", "ring", "recursive", "hierarchical", "in-switch")
BUS_FACTORS = {
    "all-reduce": lambda p: 2 * (p - 1) / p,
    "all-gather": lambda p: (p - 1) / p,
    "reduce-scatter": lambda p: (p - 1) / p,
    "all-to-all": lambda p: (p - 1) / p,
}
"""Bus bandwidth over n/t, as nccl-tests counts it; 1 for the others."""
THAKUR = "Thakur, Rabenseifner, Gropp 2005"
PORT_SPEEDS_GBIT = (100.0, 200.0, 400.0, 800.0)
SMALL, LARGE = 1e3, 2.0**70
"""The smallest size of curves, and one that stands for the plateau: latency is nothing beside it,
whatever the ranks, so that no size reaches more than all of it."""


@dataclass(frozen=True, slots=True)
class CollectivesInputs:
    """A collective, its ranks and two links: inside a node and between nodes."""

    collective: str = fields.choice(
        "Collective", "all-reduce", tuple((x, x) for x in COLLECTIVES), group="Collective"
    )
    size_bytes: float = fields.size_field(
        "Size",
        64,
        fields.InputRange(1e-6, 1e8, "MB"),
        note="n: the whole tensor; of an all-to-all what a rank holds",
        group="Collective",
    )
    ranks: int = fields.count_field(
        "Ranks", 8, fields.InputRange(2, 100_000), note="P", group="Collective"
    )
    per_node: int = fields.count_field(
        "Ranks of a node", 8, fields.InputRange(1, 1024), note="g", group="Collective"
    )
    latency_s: float = fields.time(
        "Latency of a step",
        1,
        fields.InputRange(1e-3, 1e5, "us"),
        note="alpha, in a node",
        group="Textbook links",
    )
    link_bytes_per_s: float = fields.bandwidth(
        "Bandwidth", 450, note="1/beta, in a node, one way", group="Textbook links"
    )
    far_latency_s: float = fields.time(
        "Latency between nodes", 5, fields.InputRange(1e-3, 1e5, "us"), group="Textbook links"
    )
    far_bytes_per_s: float = fields.bandwidth(
        "Bandwidth between nodes", 50, group="Textbook links"
    )
    device: str = fields.choice(
        "Device",
        DEFAULT_DEVICE,
        devices(),
        note="for the cost model, with its usual ports",
        group="Cost model",
    )

    def check(self) -> None:
        """Raise `BadInput` where ranks do not fill nodes."""
        if self.ranks > self.per_node and self.ranks % self.per_node:
            raise BadInput(
                "ranks",
                f"{self.ranks} ranks do not fill nodes of {self.per_node}",
                f"{self.ranks // self.per_node * self.per_node} or one node",
            )

    @property
    def nodes(self) -> int:
        """Nodes that the ranks fill."""
        return max(1, self.ranks // self.per_node)


@dataclass(frozen=True, slots=True)
class AlgorithmCost:
    """A textbook time: (steps, bytes) in the node and between nodes."""

    near_steps: float
    near_bytes: float
    far_steps: float = 0.0
    far_bytes: float = 0.0
    formula: str = ""

    def seconds(self, x: CollectivesInputs) -> float:
        """Return steps times latency plus bytes over bandwidth, on both links."""
        near = self.near_steps * x.latency_s + self.near_bytes / x.link_bytes_per_s
        return near + self.far_steps * x.far_latency_s + self.far_bytes / x.far_bytes_per_s


def flat(name: str, way: str, p: int, n: float) -> tuple[float, float, str] | None:
    """Return (steps, bytes, formula) of an algorithm that knows no nodes; None if there is none.

    alpha-beta model: a step costs a, a byte of the busiest rank b. n is the whole tensor, of an
    all-to-all what one rank holds. naive: one rank after the other to or from a root; tree:
    binomial, not pipelined; ring: pipelined in small pieces; recursive: halving and doubling
    (Bruck's for all-to-all), ceil(log2 P) steps; in-switch: a sum or copy made by the switch.

    Source: Thakur, Rabenseifner and Gropp 2005; Chan et al. 2007; Bruck et al. 1997. Left out: the
    arithmetic of sums, contention, powers other than two (a step more).
    """
    log, q = math.ceil(math.log2(p)), p - 1
    share = q / p * n
    rooted = {
        "naive": (q, q * n, "(P - 1)(a + n b)"),
        "tree": (log, log * n, "log2 P (a + n b)"),
        "ring": (q, n, "(P - 1) a + n b"),
        "recursive": (2 * log, 2 * share, "2 log2 P a + 2 (P - 1)/P n b"),
        "in-switch": (1, n, "a + n b"),
    }
    personal = {
        "naive": (q, share, "(P - 1)(a + n/P b)"),
        "tree": (log, share, "log2 P a + (P - 1)/P n b"),
        "ring": (q, share, "(P - 1)(a + n/P b)"),
        "recursive": (log, share, "log2 P a + (P - 1)/P n b"),
    }
    spread = {
        "naive": (2 * q, share + q * n, "(P - 1)(a + n/P b) + (P - 1)(a + n b)"),
        "tree": (2 * log, share + log * n, "2 log2 P a + (P - 1)/P n b + log2 P n b"),
        "ring": (q, share, "(P - 1)(a + n/P b)"),
        "recursive": (log, share, "log2 P a + (P - 1)/P n b"),
    }
    result = {
        "broadcast": rooted,
        "reduce": rooted,
        "scatter": personal,
        "gather": personal,
        "all-gather": spread | {"in-switch": (1, share, "a + (P - 1)/P n b")},
        "reduce-scatter": spread | {"in-switch": (1, share, "a + (P - 1)/P n b")},
        "all-reduce": {
            "naive": (2 * q, 2 * q * n, "2 (P - 1)(a + n b)"),
            "tree": (2 * log, 2 * log * n, "2 log2 P (a + n b)"),
            "ring": (2 * q, 2 * share, "2 (P - 1)(a + n/P b)"),
            "recursive": (2 * log, 2 * share, "2 log2 P a + 2 (P - 1)/P n b"),
            "in-switch": (2, (p + 1) / p * n, "2 a + (P + 1)/P n b"),
        },
        "all-to-all": {
            "naive": (2 * q, 2 * q * n, "2 (P - 1)(a + n b): all through one root"),
            "tree": (2 * log, 2 * q * n, "2 log2 P a + 2 (P - 1) n b: through one root"),
            "ring": (q, q * n / 2, "(P - 1)(a + n/2 b): pieces go around"),
            "recursive": (log, log * n / 2, "log2 P (a + n/2 b)"),
        },
    }[name]
    return result.get(way)


def algorithm_cost(
    x: CollectivesInputs, way: str, size: float | None = None
) -> AlgorithmCost | None:
    """Return the textbook cost of an algorithm; None where the collective has none of it.

    Over several nodes the flat ones are held to the link between nodes, except that a ring enters
    and leaves a node through the ports of all its ranks: min(B, g B_far). Hierarchical: inside the
    node and between nodes in turn, for an all-reduce a reduce-scatter inside, an all-reduce of n/g
    on every port, an all-gather inside. An all-to-all is also done directly, which the hierarchy
    is here: (P - g)/P of it over the port.
    """
    n, p, g, k = size or x.size_bytes, x.ranks, min(x.ranks, x.per_node), x.nodes
    if way == "hierarchical":
        return None if k == 1 and x.collective != "all-to-all" else _hierarchical(x, n, p, g, k)
    result = flat(x.collective, way, p, n)
    if result is None:
        return None
    steps, sent, formula = result
    if k == 1:
        return AlgorithmCost(steps, sent, formula=formula)
    if way == "in-switch":
        return None
    if way == "ring":
        far_steps = steps * k / p
        ports = min(x.link_bytes_per_s, g * x.far_bytes_per_s)
        as_far = sent * x.far_bytes_per_s / ports
        return AlgorithmCost(steps - far_steps, 0.0, far_steps, as_far, formula)
    return AlgorithmCost(0.0, 0.0, steps, sent, formula)


def _hierarchical(x: CollectivesInputs, n: float, p: int, g: int, k: int) -> AlgorithmCost | None:
    logs = (math.ceil(math.log2(g)) if g > 1 else 0, math.ceil(math.log2(k)) if k > 1 else 0)
    near, far = (g - 1) / g, (k - 1) / k
    name = x.collective
    if name in ("broadcast", "reduce"):
        return AlgorithmCost(g - 1, n, logs[1], n, "log2 k a' + n b' between nodes, a ring inside")
    if name in ("scatter", "gather"):
        text = "log2 k a' + (k - 1)/k n b', then n/k inside"
        return AlgorithmCost(logs[0], near * n / k, logs[1], far * n, text)
    if name == "all-to-all":
        inside, outside = (g - 1) / p * n, (p - g) / p * n
        text = "direct: (P - 1) a, (g - 1)/P n b inside, (P - g)/P n b' outside"
        return AlgorithmCost(g - 1, inside, p - g, outside, text)
    if name == "all-reduce":
        text = "2 (g - 1)(a + n/g b) + 2 (k - 1)(a' + n/(g k) b')"
        return AlgorithmCost(2 * (g - 1), 2 * near * n, 2 * (k - 1), 2 * far * n / g, text)
    text = "(k - 1)(a' + n/P b') + (g - 1)(a + n/g b)"
    return AlgorithmCost(g - 1, near * n, k - 1, far * n / g, text)


def best_way(x: CollectivesInputs, size: float | None = None) -> tuple[str, float]:
    """Return the fastest textbook algorithm and its time, seconds."""
    times = {way: algorithm_cost(x, way, size) for way in WAYS}
    time_of_way_s = {way: one.seconds(x) for way, one in times.items() if one is not None}
    way = min(time_of_way_s, key=lambda name: (time_of_way_s[name], WAYS.index(name)))
    return way, time_of_way_s[way]


def modelled_s(x: CollectivesInputs, size: float) -> float:
    """Return what the cost model expects of the device and its usual ports, seconds."""
    group, pool = group_of(x.device, x.ranks)
    return float(collective_s(x.collective, size, group, pool).item())


def half_size_bytes(x: CollectivesInputs) -> float:
    """Return the size at which the cost model reaches half of its plateau: t(n) = 2 n / B.

    By bisection; the plateau is that of `LARGE`. The size at which latency and bandwidth cost the
    same, n* = alpha B, is the same thing for a pure alpha-beta line.
    """
    plateau = LARGE / modelled_s(x, LARGE)
    low, high = 1.0, LARGE
    for _ in range(40):
        middle = math.sqrt(low * high)
        slow = middle / modelled_s(x, middle) < plateau / 2
        low, high = (middle, high) if slow else (low, middle)
    return high


def bus_factor(name: str, p: int) -> float:
    """Return bus bandwidth over n/t, as nccl-tests counts it."""
    return float(BUS_FACTORS[name](p)) if name in BUS_FACTORS else 1.0


def collectives_result(x: CollectivesInputs) -> CalculatorResult:
    """Return the answer."""
    n, p, name = x.size_bytes, x.ranks, x.collective
    way, textbook = best_way(x)
    group, pool = group_of(x.device, p)
    expected = modelled_s(x, n)
    algorithm = chosen_algorithm(name, n, group, pool).title
    n_star = x.latency_s * x.link_bytes_per_s
    half = half_size_bytes(x)
    plateau = LARGE / modelled_s(x, LARGE)
    factor = bus_factor(name, p)
    ring = flat(name, "ring", p, n)
    assert ring is not None  # every collective has a ring
    size = shown(n, "bytes")
    numbers = (
        Number(
            "n_star",
            "Crossover n*",
            n_star,
            "bytes",
            "alpha B",
            f"{shown(x.latency_s, 'seconds')} * {shown(x.link_bytes_per_s, 'bytes_per_s')}",
            f"alpha-beta model (Hockney 1994; {THAKUR})",
            "of one message: below it latency costs more than bandwidth",
        ),
        Number(
            "ring_volume",
            "Sent by a rank around a ring",
            ring[1],
            "bytes",
            {
                "all-reduce": "2 (P - 1)/P n",
                "all-to-all": "(P - 1)/2 n",
                "broadcast": "n",
                "reduce": "n",
            }.get(name, "(P - 1)/P n"),
            f"{sig(ring[1] / n)} * {size}",
            "Patarasuk and Yuan 2009; costmodels.comm.collectives",
            "2 n for many ranks" if name == "all-reduce" else "",
        ),
        Number(
            "textbook_s",
            f"Fastest of the textbook: {way}",
            textbook,
            "seconds",
            algorithm_cost(x, way).formula if algorithm_cost(x, way) else "",  # type: ignore[union-attr]
            f"P = {p}, n = {size}, a = {shown(x.latency_s, 'seconds')}, 1/b = "
            f"{shown(x.link_bytes_per_s, 'bytes_per_s')}",
            THAKUR,
        ),
        Number(
            "expected_s",
            "Expected of the device",
            expected,
            "seconds",
            "base + steps * hop + bytes / bandwidth, by wire protocol",
            f"on {p} x {x.device}, {algorithm}, scale-up domains: "
            f"{shown(group.n_domains.item(), 'count')}",
            "NCCL's own model and constants; costmodels.comm.collectives.collective_s",
            "with the size-dependent bandwidth that measurements show",
        ),
        Number(
            "bus_bandwidth",
            "Bus bandwidth at this size",
            n / expected * factor,
            "bytes_per_s",
            f"{sig(factor)} n / t",
            f"{sig(factor)} * {size} / {shown(expected, 'seconds')}",
            "nccl-tests, doc/PERFORMANCE.md",
        ),
        Number(
            "plateau",
            "Bus bandwidth of large messages",
            plateau * factor,
            "bytes_per_s",
            f"{sig(factor)} n / t, n without end",
            f"{sig(factor)} * {shown(plateau, 'bytes_per_s')}",
            "costmodels.comm.collectives.collective_s",
        ),
        Number(
            "reached",
            "Share of it reached here",
            n / expected / plateau,
            "fraction",
            "(n / t) / plateau",
            f"{shown(n / expected * factor, 'bytes_per_s')} / "
            f"{shown(plateau * factor, 'bytes_per_s')}",
            "costmodels.comm.collectives.collective_s",
        ),
        Number(
            "half_size",
            "Size that reaches half of it",
            half,
            "bytes",
            "n with n / t(n) = plateau / 2",
            "by bisection on the cost model",
            "costmodels.comm.collectives.collective_s",
            "what n* stands for in practice",
        ),
        Number(
            "floor_s",
            "Time of a tiny message",
            modelled_s(x, 8.0),
            "seconds",
            "base + steps * hop",
            f"P = {p}",
            "costmodels.comm.collectives.collective_s",
            "measured floors are about 40 us in a node, 0.1 to 0.5 ms over several",
        ),
    )
    return CalculatorResult(
        f"{name} of {size} over {p} ranks: {shown(textbook, 'seconds')} by the textbook ({way}), "
        f"{shown(expected, 'seconds')} expected of {x.device} ({algorithm}).",
        numbers,
        _advice(x, n, half),
        (_table(x),),
        tuple(_differences(x, n_star, half)),
        (
            "Textbook: congestion, several rings at once, the arithmetic of sums.",
            "Cost model: NCCL's correction factors of trees between 64 B and 256 MB; the launch "
            "of a collective by a busy host.",
            "Broadcast and reduce by tree can be pipelined in pieces, which nears n b.",
        ),
    )


def _advice(x: CollectivesInputs, n: float, half: float) -> tuple[str, ...]:
    if n < half:
        return (
            f"{shown(n, 'bytes')} is below the {shown(half, 'bytes')} that reach half of the "
            "bandwidth: fewer and larger messages (fused buckets) pay more than a faster link.",
        )
    return ()


def _table(x: CollectivesInputs) -> NamedTable:
    rows: list[tuple[str | float | int | None, ...]] = []
    for way in WAYS:
        one = algorithm_cost(x, way)
        if one is None:
            why = "needs several nodes" if way == "hierarchical" else "gains nothing here"
            rows.append((way, "-", why, "-"))
            continue
        meet = _crossover(x, way)
        rows.append((way, shown(one.seconds(x), "seconds"), one.formula, meet))
    return NamedTable(
        f"{x.collective} by algorithm",
        AnswerTable(
            ("Algorithm", "Time", "Textbook", "Latency and bandwidth meet at"), tuple(rows)
        ),
    )


def _crossover(x: CollectivesInputs, way: str) -> str:
    """Return the size at which both halves of an algorithm's time are equal."""
    one = algorithm_cost(x, way, 1.0)
    none = algorithm_cost(x, way, 1e-300)
    if one is None or none is None:
        return "-"
    latency = none.near_steps * x.latency_s + none.far_steps * x.far_latency_s
    per_byte = one.seconds(x) - latency
    return shown(latency / per_byte, "bytes") if per_byte > 0 else "-"


def _differences(x: CollectivesInputs, n_star: float, half: float) -> list[Difference]:
    results = []
    gbit = x.link_bytes_per_s / 1e9
    if any(abs(gbit - speed) < 0.5 for speed in PORT_SPEEDS_GBIT):
        results.append(
            Difference(
                "bits_for_bytes",
                f"a port of {gbit:g} (such as HDR for 200) moves {gbit:g} GB/s",
                GUIDE,
                n_star,
                n_star / 8,
                "bytes",
                f"{gbit:g} Gb/s are {gbit / 8:g} GB/s one "
                "way, if a network port is meant: n* is an eighth.",
            )
        )
    part = device(x.device)
    results += [
        Difference(
            "wire_latency",
            "n* = alpha B with the latency of the wire",
            GUIDE,
            n_star,
            half,
            "bytes",
            "The latency of a collective is not that of the wire: its base and its steps "
            "come to tens of microseconds, so half of the bandwidth is reached only at megabytes. "
            "A figure on the same page says 2 to 5 KB, its code 450.",
        ),
        Difference(
            "both_directions",
            "1/beta is the sum of both directions",
            GUIDE,
            2 * part.scale_up_bytes_per_s,
            part.scale_up_bytes_per_s,
            "bytes_per_s",
            f"Of {x.device}: data sheets add both directions up. A ring reaches "
            f"{shown(part.ring_bytes_per_s, 'bytes_per_s')}.",
        ),
    ]
    if x.collective in ("reduce-scatter", "scatter", "all-to-all"):
        p, n = x.ranks, x.size_bytes
        results.append(
            Difference(
                "per_output",
                "(P - 1) n/P b where n is the output of one rank",
                GUIDE,
                (p - 1) / p * n / x.link_bytes_per_s,
                (p - 1) * n / x.link_bytes_per_s,
                "seconds",
                "1/P belongs to the whole tensor. With n for each output it is (P - 1) n b.",
            )
        )
    if x.collective == "all-reduce":
        p, k, n = x.ranks, x.nodes, x.size_bytes
        log = 2 * math.log2(p) * x.latency_s
        results += [
            Difference(
                "ring_latency",
                "an all-reduce has a latency of 2 log2 P a",
                GUIDE,
                log,
                2 * (p - 1) * x.latency_s,
                "seconds",
                "Of halving and doubling, or of a tree. A ring takes 2 (P - 1) steps.",
            ),
        ]
        if k > 1:
            g = x.per_node
            one_port = 2 * (k - 1) / k * n / x.far_bytes_per_s
            results.append(
                Difference(
                    "one_port",
                    "hierarchical: all-reduce inside, one device of a node between "
                    "nodes, broadcast",
                    GUIDE,
                    one_port,
                    one_port / g,
                    "seconds",
                    f"That uses one port in {g} and repeats a step. Real ones scatter inside, so "
                    "that every port carries n/g. (Time between nodes.)",
                )
            )
        results.append(
            Difference(
                "efficiency",
                "90 % of the bandwidth at 1 GB, 60 % at 128 MB",
                MODELER,
                0.6,
                128e6 / modelled_s(x, 128e6) / (LARGE / modelled_s(x, LARGE)),
                "fraction",
                "Measured against the plateau: 83 % at 128 MiB on eight H200 with "
                "sums in the switch, 75 % on eight A100. Ours is for this device and ranks.",
            )
        )
    return results


def over_ranks(x: CollectivesInputs) -> tuple[list[int], list[tuple[str, list[float]]]]:
    """Return numbers of ranks that fill nodes, and the time of each algorithm there, seconds."""
    inside = [p for p in (2**k for k in range(1, 11)) if p <= x.per_node]
    ranks = inside + [x.per_node * 2**k for k in range(11) if 2 <= x.per_node * 2**k <= 2048]
    ranks = sorted(set(ranks))
    each = [replace(x, ranks=p) for p in ranks]
    results = []
    for way in WAYS:
        values = [one.seconds(y) if (one := algorithm_cost(y, way)) else math.nan for y in each]
        if any(value == value for value in values):
            results.append((way, values))
    results.append(("cost model", [modelled_s(y, x.size_bytes) for y in each]))
    return ranks, results


def collectives_charts(x: CollectivesInputs) -> "tuple[Chart, ...]":
    """Return time by algorithm over size and ranks, and the cost model's bandwidth over size."""
    from planner.learn.drawing import Axes, ChartText, Line, lines_chart, log_spread

    sizes = log_spread(SMALL, 16e9, 43)
    results = []
    for way in WAYS:
        values = [algorithm_cost(x, way, n) for n in sizes]
        if all(one is not None for one in values):
            results.append(Line(way, [one.seconds(x) * 1e3 for one in values if one is not None]))
    expected = [modelled_s(x, n) for n in sizes]
    floor_s, per_byte_s = modelled_s(x, 8.0), modelled_s(x, LARGE) / LARGE
    results.append(Line("cost model", [t * 1e3 for t in expected]))
    ranks, by_ranks = over_ranks(x)
    factor = bus_factor(x.collective, x.ranks) / 1e9
    bus = [n / t * factor for n, t in zip(sizes, expected, strict=True)]
    line = [n / (floor_s + n * per_byte_s) * factor for n in sizes]
    return (
        lines_chart(
            ChartText(
                "time",
                f"{x.collective} over {x.ranks} ranks by algorithm",
                "Flat on the left, where steps count; rising on the right, where bytes do.",
            ),
            Axes(
                ("Size (MB)", [n / 1e6 for n in sizes]), "ms", log_y=True, here=x.size_bytes / 1e6
            ),
            results,
        ),
        lines_chart(
            ChartText(
                "ranks",
                f"{x.collective} of {shown(x.size_bytes, 'bytes')} over the ranks",
                f"Beyond {x.per_node} ranks the network between nodes takes part.",
            ),
            Axes(("Ranks", ranks), "ms", log_y=True, here=x.ranks),
            [Line(name, [value * 1e3 for value in values]) for name, values in by_ranks],
        ),
        lines_chart(
            ChartText(
                "bandwidth",
                "Bus bandwidth over the size",
                f"What {x.ranks} x {x.device} are expected to reach, beside one straight line of "
                "floor and plateau: protocols and algorithms change on the way.",
            ),
            Axes(("Size (MB)", [n / 1e6 for n in sizes]), "GB/s", here=x.size_bytes / 1e6),
            [Line("cost model", bus), Line("floor + n / plateau", line)],
        ),
    )


CALCULATOR = Calculator(
    "collectives",
    "Collective explorer",
    "How long does a collective take, by which algorithm, and from which size on is it bandwidth?",
    CollectivesInputs,
    collectives_result,
    collectives_charts,
    (
        Preset("All-reduce in a node of H100", {}),
        Preset("HDR read as 200 GB/s", {"latency_s": "1.5", "link_bytes_per_s": "200"}),
        Preset("100 Gb Ethernet", {"latency_s": "5", "link_bytes_per_s": "12.5"}),
        Preset(
            "All-gather over 8 nodes",
            {"collective": "all-gather", "ranks": "64", "size_bytes": "1000"},
        ),
        Preset("All-to-all over 4 nodes", {"collective": "all-to-all", "ranks": "32"}),
        Preset(
            "A rack of 72",
            {
                "ranks": "72",
                "per_node": "72",
                "device": "gb200-186gb",
                "link_bytes_per_s": "900",
                "size_bytes": "1000",
            },
        ),
    ),
)
