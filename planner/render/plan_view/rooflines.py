"""Rooflines of one plan: every operator group under its roof, every collective under its link.

x is FLOPs per byte, y FLOP/s of a device; under bandwidth b and peak p the roof is min(p, x b)
(Williams, Waterman, Patterson 2009). An operator stands at what it reaches while it runs. A kind
of transfer stands at the FLOP/s that a device could keep up were this transfer all there is: model
FLOPs of a step over its time on the wire.
"""

import math
from typing import Any

from costmodels.documentation.terms import TERMS
from costmodels.layers.flops import model_flops_per_step
from costmodels.offload.activations import copy_bytes_per_s
from costmodels.problem import Problem
from costmodels.traffic import PlanTransfer
from planner.render.charts.chart import Frame
from planner.render.palette import TRAFFIC_KEYS, legend_fill, operator_fill
from planner.render.plan_view.cards import (
    Amount,
    CardNumber,
    Cell,
    Deck,
    Derivation,
    Label,
    NumberTable,
    Words,
)
from planner.render.plan_view.figures import FigureHeading, ViewFigure, view_figure
from planner.render.plan_view.opened.time import opened_parts
from planner.render.plan_view.operators import BACKWARD, DGRAD, FORWARD, WGRAD, Operator, operators
from planner.render.plan_view.quantities import exact, quantity_text
from planner.render.plan_view.sources import compute_figures
from planner.render.report.theme import INK
from planner.solver.answer.result import Plan

TRANSFERS = "costmodels.traffic.PlanTraffic.transfers"
"""What makes the rows of collectives."""
BYTES_PER_OPERATION = 2.0
"""Memory-bound operators are drawn as if they did one FLOP for each 16-bit element that they move:
the model does not count theirs."""
SYMBOLS = {
    FORWARD: "circle",
    DGRAD: "triangle-left",
    WGRAD: "triangle-down",
    BACKWARD: "triangle-up",
}
KINDS = ("linear", "attention", "experts", "head", "elementwise", "embedding", "optimizer")
LINE = legend_fill("per step")


def compute_roofline(deck: Deck, problem: Problem, plan: Plan) -> ViewFigure:
    """Return the roofline of compute: a dot for every operator group and direction."""
    result = operators(opened_parts(problem, plan.breakdown))
    part = problem.pool.accelerator
    bandwidth, eff = part.hbm_bytes_per_s, part.efficiency
    traces = _roofs(result, bandwidth, eff.hbm_frac, eff.gemm_frac)
    for term in (term for term in KINDS if any(o.term == term for o in result)):
        own = [o for o in result if o.term == term]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": term,
                "x": [_place(o)[0] for o in own],
                "y": [_place(o)[1] / 1e12 for o in own],
                "marker": {
                    "size": 11,
                    "color": operator_fill(term),
                    "opacity": 0.85,
                    "symbol": [SYMBOLS.get(o.direction, "square") for o in own],
                    "line": {"width": 1, "color": INK},
                },
                "text": [_operator_text(o, plan) for o in own],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    rows = tuple(_operator_row(deck, problem, plan, o, i) for i, o in enumerate(result))
    places = [_place(o) for o in result]
    xs = [x for x, _ in places] + [part.peak_flops_per_s[problem.job.recipe.linear] / bandwidth]
    ys = [y / 1e12 for _, y in places] + [max(o.peak_flops_per_s for o in result) / 1e12]
    frame = Frame(
        460,
        {
            "xaxis": _log_axis("FLOPs per byte of HBM", [min(xs) / 2, max(xs) * 2]),
            "yaxis": _log_axis("TFLOP/s of a device", [min(ys) / 2, max(ys) * 1.5]),
        },
        legend_lines=3,
    )
    products = [o for o in result if o.flops]
    best = max(range(len(result)), key=lambda i: result[i].rate / result[i].peak_flops_per_s)
    worst = min(
        (i for i, o in enumerate(result) if o in products),
        key=lambda i: result[i].rate / result[i].peak_flops_per_s,
    )
    caption: Words = (
        "Nearest to its peak: ",
        f"{result[best].name}, {result[best].direction}, with ",
        rows[best][8] or "",
        "; furthest of the matrix products: ",
        f"{result[worst].name}, {result[worst].direction}, with ",
        rows[worst][8] or "",
        ".",
    )
    notes = [
        "Circles are forwards, triangles backwards (left: gradient of the data, down: of the"
        " weights), squares updates. Solid roofs are the data sheet's, dashed ones what the model"
        " takes to be sustained. Recomputed calls are not counted twice.",
        "Operators without matrix products stand at one FLOP for each element that they move: the"
        " model counts their bytes, not their FLOPs.",
    ]
    if problem.shape.mtp_layers:
        notes.append("The layers inside multi-token prediction are not listed apart.")
    heads = (
        "Operator",
        "Direction",
        "Calls",
        "FLOPs",
        "Bytes",
        "FLOPs per byte",
        "Time of one",
        "Reached",
        "Of the peak",
        "Bound by",
        "Time in the step",
    )
    return view_figure(
        deck,
        FigureHeading(
            "compute-roofline", "Roofline of every operator group", caption, tuple(notes)
        ),
        frame.figure(traces, checked=False),
        NumberTable(heads, rows),
    )


def _place(o: Operator) -> tuple[float, float]:
    """Return where an operator stands: FLOPs per byte and FLOP/s."""
    if o.flops:
        return o.intensity, o.rate
    return 1.0 / BYTES_PER_OPERATION, o.moved_bytes / BYTES_PER_OPERATION / o.time_s


def _roofs(
    groups: tuple[Operator, ...], bandwidth: float, share: float, frac: float
) -> list[dict[str, Any]]:
    places = [_place(o)[0] for o in groups]
    low, high = min(places) / 2, max(places) * 2
    traces = []
    for peak in sorted({o.peak_flops_per_s for o in groups}):
        for name, p, b, dash in (
            ("data sheet", peak, bandwidth, "solid"),
            ("sustained", peak * frac, bandwidth * share, "dash"),
        ):
            x = [low, p / b, max(high, 2 * p / b)]
            text = f"{name}: {quantity_text(p, 'FLOP/s', 3)}, {quantity_text(b, 'B/s', 3)}"
            traces.append(_line(x, [low * b / 1e12, p / 1e12, p / 1e12], text, dash))
    return traces


def _line(x: list[float], y: list[float], name: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "hoverinfo": "skip",
        "line": {"width": 2, "color": LINE, "dash": dash},
    }


def _operator_text(o: Operator, plan: Plan) -> str:
    reached = (
        f"{quantity_text(o.rate, 'FLOP/s')}, {100 * o.rate / o.peak_flops_per_s:.0f} % of peak"
    )
    if not o.flops:
        reached = f"{quantity_text(o.moved_bytes / o.time_s, 'B/s')} of HBM"
    return (
        f"{o.name}, {o.direction}<br>{reached}<br>{quantity_text(o.time_s, 's')} a call,"
        f" {quantity_text(o.time_s * o.n_calls, 's')} of {quantity_text(plan.step_time_s, 's')}"
    )


def _operator_row(
    deck: Deck, problem: Problem, plan: Plan, o: Operator, i: int
) -> tuple[Cell, ...]:
    part, key, source = problem.pool.accelerator, f"operator-{i}", TERMS[o.term].source
    numbers = f"arithmetic on the numbers of its row; {source}"
    roof = f"roofline: Williams, Waterman and Patterson 2009; {source}"
    name = f"{o.name}, {o.direction}"
    calls = deck.add(
        f"{key}-calls",
        f"calls of {name}, in a step",
        Amount(o.n_calls, "", text=f"{o.n_calls:,.0f}"),
        Derivation(
            "micro-batches × layers of the slowest rank that have it"
            if o.n_calls > 1
            else "once a step",
            _calls_text(plan, o),
            "costmodels.breakdown: terms of the slowest rank",
        ),
    )
    flops: CardNumber | None = None
    if o.flops:
        flops = deck.add(
            f"{key}-flops",
            f"FLOPs of {name}",
            Amount(o.flops, "FLOP"),
            Derivation(*o.flops_text, source, method=o.term),
        )
    moved = deck.add(
        f"{key}-bytes",
        f"HBM traffic of {name}",
        Amount(o.moved_bytes, "B"),
        Derivation(*o.bytes_text, source, method=o.term),
    )
    one = deck.add(
        f"{key}-time",
        f"time of {name}",
        Amount(o.time_s, "s"),
        Derivation(*o.time_text, source, inputs=compute_figures(problem), method=o.term),
    )
    step = deck.add(
        f"{key}-step",
        f"time of {name} in a step",
        Amount(o.time_s * o.n_calls, "s"),
        Derivation(
            "calls × time of one", f"{o.n_calls:g} × {exact(o.time_s, 's')}", source, method=o.term
        ),
    )
    ridge = o.peak_flops_per_s / part.hbm_bytes_per_s
    if not o.flops:
        reached = deck.add(
            f"{key}-rate",
            f"HBM bandwidth that {name} reaches",
            Amount(o.moved_bytes / o.time_s, "B/s"),
            Derivation(
                "bytes / time", f"{exact(o.moved_bytes, 'B')} / {exact(o.time_s, 's')}", numbers
            ),
        )
        share = o.moved_bytes / o.time_s / part.hbm_bytes_per_s
        of_peak = deck.add(
            f"{key}-share",
            f"share of the HBM bandwidth that {name} reaches",
            Amount(share, "%", text=f"{100 * share:.0f} %"),
            Derivation(
                "bytes / time / B_hbm",
                f"{exact(o.moved_bytes, 'B')} / {exact(o.time_s, 's')} /"
                f" {exact(part.hbm_bytes_per_s, 'B/s')}",
                roof,
            ),
        )
        return (
            name_cell(o),
            o.direction,
            calls,
            None,
            moved,
            None,
            one,
            reached,
            of_peak,
            "HBM bandwidth",
            step,
        )
    intensity = deck.add(
        f"{key}-intensity",
        f"FLOPs per byte of {name}",
        Amount(o.intensity, "FLOP/B", text=f"{o.intensity:,.0f}"),
        Derivation(
            "FLOPs / bytes",
            f"{exact(o.flops, 'FLOP')} / {exact(o.moved_bytes, 'B')}",
            numbers,
            inputs=(("ridge, P / B_hbm", f"{ridge:,.0f}"),),
        ),
    )
    rate = deck.add(
        f"{key}-rate",
        f"what {name} reaches",
        Amount(o.rate, "FLOP/s"),
        Derivation("FLOPs / time", f"{exact(o.flops, 'FLOP')} / {exact(o.time_s, 's')}", numbers),
    )
    share = o.rate / o.peak_flops_per_s
    of_peak = deck.add(
        f"{key}-share",
        f"share of the peak that {name} reaches",
        Amount(share, "%", text=f"{100 * share:.0f} %"),
        Derivation(
            "FLOPs / time / P",
            f"{exact(o.flops, 'FLOP')} / {exact(o.time_s, 's')} /"
            f" {exact(o.peak_flops_per_s, 'FLOP/s')}",
            roof,
            inputs=compute_figures(problem),
        ),
    )
    bound = "compute" if o.intensity >= ridge else "HBM bandwidth"
    return (
        name_cell(o),
        o.direction,
        calls,
        flops,
        moved,
        intensity,
        one,
        rate,
        of_peak,
        bound,
        step,
    )


def name_cell(o: Operator) -> str:
    """Return the name of an operator as a cell."""
    return o.name


def _calls_text(plan: Plan, o: Operator) -> str:
    m = plan.layout.n_passes
    return f"{m} × {o.n_calls / m:.9g}" if o.n_calls > 1 else "1"


def communication_roofline(deck: Deck, problem: Problem, plan: Plan) -> ViewFigure | None:
    """Return the communication roofline: a dot for every kind of transfer; None without any."""
    result, part = plan.breakdown.transfers, problem.pool.accelerator
    if not result:
        return None
    n = plan.layout.n_devices
    flops = model_flops_per_step(problem.shape, problem.job) / n
    device = deck.add(
        "device-flops",
        "model FLOPs of a device in a step",
        Amount(flops, "FLOP"),
        Derivation(
            "model FLOPs of a step / devices",
            f"{exact(flops * n, 'FLOP')} / {n:,}",
            "costmodels.layers.flops.model_flops_per_step",
        ),
    )
    reached = flops / plan.step_time_s
    rate = deck.add(
        "device-rate",
        "model FLOP/s of a device in the step",
        Amount(reached, "FLOP/s"),
        Derivation(
            "model FLOPs of a device / step time",
            f"{exact(flops, 'FLOP')} / {exact(plan.step_time_s, 's')}",
            "costmodels.layers.flops.model_flops_per_step and costmodels.breakdown.break_down",
        ),
    )
    rows, xs, ys, traces = [], [], [], []
    rates = link_rates(problem)
    dots: dict[str, list[tuple[float, float, str, str]]] = {}
    for i, one in enumerate(result):
        link, on_link = binding_link(one, rates)
        x, y = flops / on_link, flops / one.time_s
        rows.append(_transfer_row(deck, plan, one, i, flops, rates))
        text = (
            f"{one.axis} {one.collective}, {one.group_size} ranks, {one.tier}"
            f"<br>{quantity_text(one.sent_bytes, 'B')} in "
            f"{quantity_text(one.time_s, 's')}, waited for"
            f" {quantity_text(one.exposed_s, 's')}"
        )
        symbol = "circle" if link == "scale-up" else "square" if link == "scale-out" else "diamond"
        dots.setdefault(one.axis, []).append((x, y / 1e12, text, symbol))
        xs.append(x)
        ys.append(y / 1e12)
    peak = part.peak_flops_per_s[problem.job.recipe.linear]
    links = [(one, binding_link(one, rates)[0]) for one in result]
    used = {(link, rate_of(link, one, rates)) for one, link in links}
    low, high = min(xs) / 3, max(xs) * 3
    for link, dash in (("scale-up", "solid"), ("scale-out", "dash"), ("host", "dot")):
        for b in sorted({rate for name, rate in used if name == link}, reverse=True):
            name = f"{link} {quantity_text(b, 'B/s', 3)}"
            traces.append(_line([low, high], [low * b / 1e12, high * b / 1e12], name, dash))
    for name, value, dash in (
        ("peak of a device", peak, "dashdot"),
        ("what the step reaches", reached, "longdash"),
    ):
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": [low, high],
                "y": [value / 1e12] * 2,
                "hoverinfo": "skip",
                "line": {"width": 2, "color": legend_fill("limit"), "dash": dash},
            }
        )
    for axis, axis_dots in dots.items():
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": axis,
                "x": [d[0] for d in axis_dots],
                "y": [d[1] for d in axis_dots],
                "text": [d[2] for d in axis_dots],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "size": 12,
                    "color": legend_fill(TRAFFIC_KEYS[axis]),
                    "symbol": [d[3] for d in axis_dots],
                    "line": {"width": 1, "color": INK},
                },
            }
        )
    frame = Frame(
        440,
        {
            "xaxis": _log_axis("FLOPs per byte over the link", [low, high]),
            "yaxis": _log_axis(
                "TFLOP/s that it would allow",
                [min(*ys, reached / 1e12) / 2, max(*ys, peak / 1e12) * 2],
            ),
        },
        legend_lines=3,
    )
    waits = max(range(len(result)), key=lambda i: result[i].exposed_s)
    caption: Words = (
        "A device does ",
        device,
        " in a step and reaches ",
        rate,
        ". Longest waited for: ",
        f"{result[waits].axis} {result[waits].collective}, ",
        rows[waits][7] or "",
        " of ",
        rows[waits][6] or "",
        " on the wire.",
    )
    notes = (
        "A dot says how fast a device could compute were this transfer all there is to wait for."
        " On the line of its link it uses all bandwidth; below it, it loses time to latency or to"
        " the protocol. The nearer to what the step reaches, the more of the step it takes."
        " Circles are bound by links inside the scale-up domain, squares by those outside,"
        " diamonds by the host.",
    )
    heads = (
        "Axis",
        "Collective",
        "Ranks",
        "Calls",
        "Message",
        "Sent",
        "On the wire",
        "Waited for",
        "FLOPs per byte",
        "Reached",
        "Of the link",
        "Bound by",
    )
    return view_figure(
        deck,
        FigureHeading(
            "communication-roofline", "Communication roofline of every collective", caption, notes
        ),
        frame.figure(traces, checked=False),
        NumberTable(heads, tuple(rows)),
    )


def _log_axis(title: str, values: list[float]) -> dict[str, Any]:
    """Return a logarithmic axis of whole decades, written short: it fits a narrow window."""
    low, high = min(values), max(values)
    decades = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    prefixes = {3: "k", 6: "M", 9: "G", 12: "T"}
    texts = []
    for power in decades:
        step = 3 * (power // 3)
        texts.append(
            f"{10 ** (power - step)}{prefixes[step]}" if step in prefixes else f"{10.0**power:g}"
        )
    return {
        "type": "log",
        "title": {"text": title},
        "tickmode": "array",
        "tickvals": [10.0**power for power in decades],
        "ticktext": texts,
        "range": [math.log10(low), math.log10(high)],
    }


def link_rates(problem: Problem) -> dict[str, float]:
    """Return the bandwidth of each kind of link, one way, bytes per second of a device."""
    pool = problem.pool
    rates = {"scale-up": pool.accelerator.ring_bytes_per_s, "scale-out": pool.nic_bytes_per_s}
    if pool.host is not None:
        rates["host"] = float(copy_bytes_per_s(pool.host))
    return rates


def rate_of(link: str, one: PlanTransfer, rates: dict[str, float]) -> float:
    """Return the bandwidth that a transfer has of a link, bytes per second.

    That of `link_rates`; on a torus what one collective gets along the axes of its group.
    """
    return one.torus_bytes_per_s or rates[link] if link == "scale-up" else rates[link]


def binding_link(one: PlanTransfer, rates: dict[str, float]) -> tuple[str, float]:
    """Return the link that takes longest for a transfer, and the bytes on it."""
    if one.axis == "host":
        return "host", one.sent_bytes
    outside = min(one.scale_out_bytes, one.sent_bytes)
    inside = one.sent_bytes - outside
    near, far = inside / rate_of("scale-up", one, rates), outside / rates["scale-out"]
    return ("scale-up", inside) if near >= far else ("scale-out", outside)


def _transfer_row(
    deck: Deck,
    plan: Plan,
    one: PlanTransfer,
    i: int,
    flops: float,
    rates: dict[str, float],
) -> tuple[Cell, ...]:
    link, on_link = binding_link(one, rates)
    key, source = f"transfer-{i}", TERMS.get(one.axis, TERMS["offload"]).source
    name = f"{one.axis} {one.collective} over {one.group_size} ranks"
    m, ranks = plan.layout.n_passes, one.group_size
    numbers = f"arithmetic on the numbers of its row; {TRANSFERS}; {source}"
    method = one.axis if one.axis != "host" else "offload"
    size = deck.add(
        f"{key}-ranks",
        f"ranks of a group of {name}",
        Amount(ranks, "", text=str(ranks)),
        Derivation(
            "degree of the axis",
            str(ranks),
            "costmodels.comm.placement.place_group",
            inputs=(("widest level of the network", one.tier), ("algorithm", one.algorithm)),
        ),
    )
    every = one.n_calls % m == 0 and one.n_calls >= m
    calls = deck.add(
        f"{key}-calls",
        f"calls of {name}, in a step",
        Amount(one.n_calls, "", text=f"{one.n_calls:,}"),
        Derivation(
            "calls of a micro-batch × micro-batches" if every else "pieces of a pass, once a step",
            f"{one.n_calls // m} × {m}" if every else str(one.n_calls),
            f"{TRANSFERS}; {source}",
            method=method,
        ),
    )
    message = deck.add(
        f"{key}-message",
        f"logical tensor of a call of {name}",
        Amount(one.message_bytes, "B"),
        Derivation(
            "sent bytes / (calls × share that a rank sends)" if one.n_calls else "nothing",
            f"{exact(one.sent_bytes, 'B')} / ({one.n_calls:,} × {_sent_share(one)})",
            f"{TRANSFERS}; {source}",
            inputs=(("type", one.dtype),),
            method=method,
        ),
    )
    sent = deck.add(
        f"{key}-sent",
        f"bytes that a device sends by {name}",
        Amount(one.sent_bytes, "B"),
        Derivation(
            "calls × message × share that a rank sends",
            f"{one.n_calls:,} × {exact(one.message_bytes, 'B')} × {_sent_share(one)}",
            "costmodels.traffic: ring volumes",
            inputs=(
                ("of that out of the scale-up domain", quantity_text(one.scale_out_bytes, "B")),
            ),
        ),
    )
    wire = deck.add(
        f"{key}-time",
        f"time of {name} on the wire",
        Amount(one.time_s, "s"),
        Derivation(
            "calls × time of one",
            f"{one.n_calls:,} × {exact(one.time_s / max(1, one.n_calls), 's')}",
            f"costmodels.comm.collectives: NCCL src/graph/tuning.cc; {source}",
            inputs=(("algorithm", one.algorithm),),
            method=method,
        ),
    )
    waited = deck.add(
        f"{key}-exposed",
        f"time that compute waits for {name}",
        Amount(one.exposed_s, "s"),
        Derivation(
            "time on the wire − what runs beside compute",
            f"{one.time_s:.9g} s − ({one.time_s - one.exposed_s:.9g} s)".replace(
                "e-", "e−"
            ).replace("(-", "(−"),
            f"{TRANSFERS}; {source}",
            method=method,
        ),
    )
    intensity = deck.add(
        f"{key}-intensity",
        f"model FLOPs per byte over the link that binds {name}",
        Amount(flops / on_link, "FLOP/B", text=f"{flops / on_link:,.0f}"),
        Derivation(
            "model FLOPs of a device / bytes over the link",
            f"{exact(flops, 'FLOP')} / {exact(on_link, 'B')}",
            numbers,
        ),
    )
    reached = on_link / one.time_s
    rate = deck.add(
        f"{key}-rate",
        f"bandwidth that {name} reaches on the link that binds",
        Amount(reached, "B/s"),
        Derivation(
            "bytes over the link / time on the wire",
            f"{exact(on_link, 'B')} / {exact(one.time_s, 's')}",
            numbers,
        ),
    )
    bandwidth = rate_of(link, one, rates)
    share = reached / bandwidth
    of_link = deck.add(
        f"{key}-share",
        f"share of the link that {name} reaches",
        Amount(share, "%", text=f"{100 * share:.0f} %"),
        Derivation(
            "reached / bandwidth of the link",
            f"{exact(reached, 'B/s')} / {exact(bandwidth, 'B/s')}",
            "catalogue and calibration: ring bandwidth inside, ports × their efficiency outside",
        ),
    )
    text = f"{link} bandwidth" if share >= 0.5 else "latency or protocol"
    return (
        Label(one.axis),
        one.collective,
        size,
        calls,
        message,
        sent,
        wire,
        waited,
        intensity,
        rate,
        of_link,
        text,
    )


def _sent_share(one: PlanTransfer) -> str:
    """Return what of the logical tensor a rank sends, as the model counts it."""
    ranks = one.group_size
    if one.collective == "all-reduce":
        return f"2 × ({ranks} − 1) / {ranks}"
    if one.collective in ("point-to-point", "broadcast") or one.axis == "host":
        return "1"
    return f"({ranks} − 1) / {ranks}"
