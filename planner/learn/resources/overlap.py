"""Overlap calculator: traffic against compute on every axis, and which one binds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodels.comm.context_parallel import ring_times
from costmodels.layers.compute import ForwardBackward
from costmodels.schedule.pipeline import bubble_frac, p2p_s
from planner.learn import fields
from planner.learn.closed_forms import (
    data_parallel_bytes,
    expert_exchange_bytes,
    gradient_least_tokens,
    ring_least_tokens,
    tensor_layer_bytes,
    tensor_tax,
)
from planner.learn.fields import BadInput
from planner.learn.machines import (
    DEFAULT_DEVICE,
    DEFAULT_MODEL,
    OWN,
    devices,
    models,
    of_device,
    of_model,
    shape,
)
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
from planner.learn.writeups import GUIDE, MODELER, TAX
from planner.render.report.answers import AnswerTable

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

AXES = ("tp", "cp", "ep", "pp", "dp")
WEIGHT_BYTES, ACTIVATION_BYTES = 2.0, 2.0
BACKWARD_ATTENTION = 2.5
"""Products of a flash backward over those of its forward."""
WORDS = {
    "tp": "tensor parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "pp": "pipeline messages",
    "dp": "gradients and weights",
    "bubble": "the pipeline bubble",
}
RELAXES = {
    "tp": "a smaller tp (its tax grows with t - 1), overlapped pieces, or a wider model",
    "cp": "a smaller cp (more tokens on a rank), or keys and values gathered inside the node",
    "ep": "a smaller ep inside the scale-up domain, fp8 dispatch, or a schedule that overlaps it",
    "pp": "interleaving with overlapped messages, fewer stages, or sequence parallelism, which "
    "splits the messages",
    "dp": "more tokens in a micro-batch, bf16 gradients, or fewer replicas",
    "bubble": "more micro-batches, fewer stages, or interleaving",
}


def layer_weights_of(values: Mapping[str, Any]) -> float | None:
    """Return the weights of a layer: the model's mean, or 12 h^2."""
    result = of_model("layer_weights")(values)
    return 12.0 * values["hidden"] ** 2 if result is None else float(result)


def _experts(what: str) -> Any:
    def follow(values: Mapping[str, Any]) -> float:
        return 0.0 if values["model"] == OWN else float(getattr(shape(values["model"]), what))

    return follow


def _top_k(values: Mapping[str, Any]) -> float:
    if not values["n_experts"]:
        return 1.0
    own = min(8, values["n_experts"])
    return float(own if values["model"] == OWN else shape(values["model"]).top_k)


@dataclass(frozen=True, slots=True)
class OverlapInputs:
    """A layout of a model on devices with two links."""

    model: str = fields.choice("Model", DEFAULT_MODEL, models(), group="Model")
    layers: int = fields.count_field(
        "Layers",
        of_model("layers", 80),
        fields.InputRange(1, 10_000),
        follows="the model",
        group="Model",
    )
    hidden: int = fields.count_field(
        "Hidden width",
        of_model("hidden", 8192),
        fields.InputRange(16, 1_000_000),
        note="h",
        follows="the model",
        group="Model",
    )
    layer_weights: float = fields.number_field(
        "Weights of a layer",
        layer_weights_of,
        fields.InputRange(1e-3, 1e7, "million"),
        note="those that a token meets",
        follows="the model, 12 h^2 without one",
        group="Model",
    )
    kv_share: float = fields.percent_field(
        "Width of keys over queries",
        12.5,
        fields.InputRange(0.1, 100, "%"),
        note="KV heads over heads",
        group="Model",
    )
    n_experts: int = fields.count_field(
        "Experts",
        _experts("n_experts"),
        fields.InputRange(0, 100_000),
        follows="the model",
        group="Model",
    )
    top_k: int = fields.count_field(
        "Experts of a token",
        _top_k,
        fields.InputRange(1, 1000),
        note="k",
        follows="the model",
        group="Model",
    )
    tokens: int = fields.count_field(
        "Tokens of a sequence",
        of_model("seq_len", 8192),
        fields.InputRange(1, 100_000_000),
        note="s",
        follows="the model",
        group="Layout",
    )
    sequences: int = fields.count_field(
        "Sequences of a micro-batch", 1, fields.InputRange(1, 10_000), note="b", group="Layout"
    )
    micro_batches: int = fields.count_field(
        "Micro-batches", 16, fields.InputRange(1, 100_000), note="m", group="Layout"
    )
    tp: int = fields.count_field(
        "Tensor-parallel size", 8, fields.InputRange(1, 1024), note="t", group="Layout"
    )
    cp: int = fields.count_field(
        "Context-parallel size", 1, fields.InputRange(1, 1024), note="c", group="Layout"
    )
    ep: int = fields.count_field(
        "Expert-parallel size", 1, fields.InputRange(1, 4096), group="Layout"
    )
    pp: int = fields.count_field(
        "Pipeline stages", 4, fields.InputRange(1, 256), note="p", group="Layout"
    )
    dp: int = fields.count_field(
        "Data-parallel size", 16, fields.InputRange(1, 100_000), note="D", group="Layout"
    )
    gradient_bytes: float = fields.number_field(
        "Bytes of a gradient on the wire",
        4,
        fields.InputRange(0.03, 8),
        note="2 bf16, 4 fp32",
        group="Layout",
    )
    device: str = fields.choice("Device", DEFAULT_DEVICE, devices(), group="Machine")
    domain: int = fields.count_field(
        "Scale-up domain",
        of_device("domain"),
        fields.InputRange(1, 100_000),
        note="devices on one NVLink or the like",
        follows="the device",
        group="Machine",
    )
    peak_flops_per_s: float = fields.rate(
        "Dense peak", of_device("peak"), follows="the device", group="Machine"
    )
    share: float = fields.percent_field("Share of it that products sustain", 60, group="Machine")
    near_bytes_per_s: float = fields.bandwidth(
        "Scale-up link", of_device("scale_up"), follows="the device", group="Machine"
    )
    far_bytes_per_s: float = fields.bandwidth(
        "Network port", of_device("scale_out"), follows="the device", group="Machine"
    )

    def check(self) -> None:
        """Raise `BadInput` for a layout that cannot be."""
        if self.pp > self.layers:
            raise BadInput("pp", f"{self.pp} stages need as many layers, not {self.layers}")
        if self.ep > 1 and not self.n_experts:
            raise BadInput("ep", "the model has no experts", "1, or a model with experts")
        if self.n_experts and self.top_k > self.n_experts:
            raise BadInput("top_k", f"a token cannot go to {self.top_k} of {self.n_experts}")
        if self.n_experts and self.n_experts % self.ep:
            raise BadInput("ep", f"{self.n_experts} experts cannot be shared out over {self.ep}")
        if self.ep > self.tp * self.cp * self.dp:
            raise BadInput("ep", f"a pipeline stage has {self.tp * self.cp * self.dp} devices")
        if self.cp > self.tokens:
            raise BadInput("cp", f"{self.tokens} tokens cannot be split over {self.cp}")

    @property
    def rate(self) -> float:
        """FLOP/s that products sustain."""
        return self.peak_flops_per_s * self.share

    @property
    def local(self) -> float:
        """Tokens of a micro-batch on one rank: b s / c."""
        return self.sequences * self.tokens / self.cp

    @property
    def stage_layers(self) -> float:
        """Layers of a stage."""
        return self.layers / self.pp

    @property
    def params(self) -> float:
        """Weights of a device, those that a token meets."""
        return self.layer_weights * self.stage_layers / self.tp

    @property
    def core_flops(self) -> float:
        """Attention of a layer forward on a device: 2 n s h / t, causal."""
        return 2 * self.local * self.tokens * self.hidden / self.tp

    @property
    def forward_s(self) -> float:
        """Forward of a micro-batch on a stage."""
        layers = self.stage_layers
        return (2 * self.params * self.local + layers * self.core_flops) / self.rate

    @property
    def backward_s(self) -> float:
        """Backward of it."""
        core = BACKWARD_ATTENTION * self.stage_layers * self.core_flops
        return (4 * self.params * self.local + core) / self.rate


@dataclass(frozen=True, slots=True)
class OverlapAxis:
    """Traffic of one axis in a step of one device."""

    name: str
    size: int
    sent_bytes: float
    bytes_per_s: float
    inside: bool
    window_s: float
    """Compute beside which it may run."""
    exposed_s: float
    how: str
    """Of what the exposed time is made."""

    @property
    def time_s(self) -> float:
        """Time on the wire."""
        return self.sent_bytes / self.bytes_per_s


def links(x: OverlapInputs) -> dict[str, tuple[float, bool]]:
    """Return by axis (bandwidth of a rank, whether the group is inside a scale-up domain).

    Ranks are in the order tp, cp, dp, pp; experts have an order of their own, ep first. A ring
    over several domains leaves each through the ports of all its r ranks there: min(B, r B_port),
    the rule of `costmodels.comm.placement`. Messages to one neighbour have one port.
    """
    stride = {"tp": 1, "cp": x.tp, "ep": 1, "dp": x.tp * x.cp, "pp": x.tp * x.cp * x.dp}
    entries = {}
    for axis in AXES:
        inside = stride[axis] * getattr(x, axis) <= x.domain
        ports = max(1, x.domain // stride[axis]) if axis in ("tp", "dp") else 1
        outside = min(x.near_bytes_per_s, ports * x.far_bytes_per_s)
        entries[axis] = (x.near_bytes_per_s if inside else outside, inside)
    return entries


def axes(x: OverlapInputs) -> dict[str, OverlapAxis]:
    """Return the traffic of every axis, per step of one device."""
    m, link_of_axis, n = x.micro_batches, links(x), x.local
    layers = x.stage_layers
    step = m * (x.forward_s + x.backward_s)
    entries = {}

    def put(name: str, sent: float, window: float, exposed: float, how: str) -> None:
        speed, inside = link_of_axis[name]
        entries[name] = OverlapAxis(
            name, getattr(x, name), sent, speed, inside, window, exposed, how
        )

    tensor = m * layers * tensor_layer_bytes(ACTIVATION_BYTES * n * x.hidden, x.tp)
    put(
        "tp",
        tensor,
        0.0,
        tensor / link_of_axis["tp"][0],
        "all of it: nothing overlapped by default",
    )

    kv = x.hidden / x.tp * x.kv_share
    block = 2 * ACTIVATION_BYTES * n * kv
    ring_sent, ring_waits = 0.0, 0.0
    if x.cp > 1:
        one = block / link_of_axis["cp"][0]
        core = x.core_flops / x.cp / x.rate
        beside = ForwardBackward(np.array(core), np.array(BACKWARD_ATTENTION * core))
        ahead, after = ring_times(np.array(float(x.cp)), np.array(one), np.array(2 * one), beside)
        ring_sent = m * layers * (3 * x.cp - 3) * block
        ring_waits = m * layers * (ahead.exposed_s.item() + after.exposed_s.item())
    core_s = m * layers * (1 + BACKWARD_ATTENTION) * x.core_flops / x.rate
    put("cp", ring_sent, core_s if x.cp > 1 else 0.0, ring_waits, "messages longer than attention")

    each = expert_exchange_bytes(n / x.tp, x.hidden, x.top_k, x.ep, ACTIVATION_BYTES)
    routed = m * layers * 4 * each if x.ep > 1 else 0.0
    put("ep", routed, 0.0, routed / link_of_axis["ep"][0], "dispatch and combine, both ways")

    message = ACTIVATION_BYTES * n * x.hidden / x.tp
    crossings = p2p_s(2, x.pp, 1, m, message / link_of_axis["pp"][0]).item()
    sent = 2 * m * message if x.pp > 1 else 0.0
    put("pp", sent, step if x.pp > 1 else 0.0, crossings, "1F1B neighbours wait for each other")

    replicas = x.dp * x.cp
    grads = data_parallel_bytes(x.params, replicas, 1, m, WEIGHT_BYTES, x.gradient_bytes)
    window = x.forward_s + x.backward_s
    time_s = grads / link_of_axis["dp"][0]
    put("dp", grads, window, max(0.0, time_s - window), "what outlasts the last backward")
    return entries


def overlap_result(x: OverlapInputs) -> CalculatorResult:
    """Return the answer of the overlap calculator."""
    result, m = axes(x), x.micro_batches
    work = m * (x.forward_s + x.backward_s)
    idle = bubble_frac(x.pp, 1, m)
    bubble = work * idle / (1 - idle)
    waits = {name: axis.exposed_s for name, axis in result.items()} | {"bubble": bubble}
    step = work + sum(waits.values())
    binds = max(waits, key=lambda name: waits[name])
    bound = work >= max(waits.values()) and waits[binds] < 0.05 * work
    layer = tensor_tax(
        x.tp, x.rate, links(x)["tp"][0], x.hidden, x.layer_weights / (12 * x.hidden**2)
    )
    least_dp = gradient_least_tokens(x.rate, result["dp"].bytes_per_s, x.gradient_bytes)
    least_cp = ring_least_tokens(x.rate, result["cp"].bytes_per_s, x.kv_share)
    local = shown(x.local, "tokens")
    numbers = [
        Number(
            "compute_s",
            "Compute of a device in a step",
            work,
            "seconds",
            "m (t_f + t_b)",
            f"{m} * ({shown(x.forward_s, 'seconds')} + {shown(x.backward_s, 'seconds')})",
            "6 FLOPs a weight and token, causal attention; costmodels.layers.flops",
        ),
        *(_axis_number(x, axis, step, binds) for axis in result.values() if axis.size > 1),
        Number(
            "bubble_s",
            "Pipeline bubble",
            bubble,
            "seconds",
            "(p - 1)(t_f + t_b)",
            f"{x.pp - 1} * {shown(x.forward_s + x.backward_s, 'seconds')}",
            "costmodels.schedule.pipeline.bubble_frac",
            f"{shown(bubble / step, 'fraction')} of the step",
            "binds" if binds == "bubble" and not bound else "",
        ),
        Number(
            "step_s",
            "Step, as these forms have it",
            step,
            "seconds",
            "compute + bubble + what is waited for",
            " + ".join(shown(value, "seconds") for value in (work, *waits.values())),
            "sum of the numbers above",
            "`planner solve` simulates it",
        ),
        Number(
            "dp_least_tokens",
            "Tokens of a micro-batch that hide the reduction",
            least_dp,
            "tokens",
            "G R / (2 B)",
            f"{sig(x.gradient_bytes)} * {sig(x.rate)} / (2 * {sig(result['dp'].bytes_per_s)})",
            "4 N n / R = 2 G N / B solved for n",
            f"{local} here; an all-reduce over the backward",
        ),
        Number(
            "cp_least_tokens",
            "Tokens of a rank that hide a ring",
            least_cp,
            "tokens",
            "2 R h_kv / (h_q B)",
            f"2 * {sig(x.rate)} * {sig(x.kv_share)} / {sig(result['cp'].bytes_per_s)}",
            "Liu et al. 2023; costmodels.comm.context_parallel",
            f"{shown(x.tokens / x.cp, 'tokens')} here",
        ),
        Number(
            "tp_tax",
            "Tax of tensor parallelism on the forward",
            layer,
            "fraction",
            "(t - 1) R / (3 B h k)",
            f"{x.tp - 1} * {sig(x.rate)} / (3 * "
            f"{sig(links(x)['tp'][0])} * {x.hidden:,} * "
            f"{sig(x.layer_weights / (12 * x.hidden**2))})",
            "two all-reduces over the products of a layer; k = its weights over 12 h^2",
        ),
    ]
    message = (
        f"Compute binds: {shown(work / step, 'fraction')} of a step of {shown(step, 'seconds')}."
        if bound
        else f"What binds is {WORDS[binds]}: {shown(waits[binds] / step, 'fraction')} of a step "
        f"of {shown(step, 'seconds')}, of which {shown(work / step, 'fraction')} is compute."
    )
    return CalculatorResult(
        message,
        tuple(numbers),
        _advice(x, waits, binds, work),
        (_table(result, work),),
        tuple(_differences(x, result, least_dp)),
        (
            "Latency and message sizes; overlapped tensor parallelism; compute that slows down "
            "beside traffic. `planner solve` has them all.",
            "Embedding, head and loss; recomputation; imbalance of experts.",
        ),
    )


def _axis_number(x: OverlapInputs, axis: OverlapAxis, step: float, binds: str) -> Number:
    where = "scale-up link" if axis.inside else "network"
    return Number(
        f"comm_{axis.name}",
        f"{WORDS[axis.name][0].upper()}{WORDS[axis.name][1:]}",
        axis.time_s,
        "seconds",
        "sent / B",
        f"{shown(axis.sent_bytes, 'bytes')} / {shown(axis.bytes_per_s, 'bytes_per_s')}",
        "planner.learn.closed_forms; costmodels.traffic.PlanTraffic.transfers",
        f"on the {where}; waited for: {shown(axis.exposed_s, 'seconds')}, "
        f"{shown(axis.exposed_s / step, 'fraction')} of the step ({axis.how})",
        "binds" if axis.name == binds else "hidden" if not axis.exposed_s else "",
    )


def _advice(x: OverlapInputs, waits: dict[str, float], binds: str, work: float) -> tuple[str, ...]:
    order = sorted(
        (name for name in waits if waits[name] > 0.01 * work), key=lambda name: -waits[name]
    )
    if not order:
        return ("Nothing is waited for: compute is the limit.",)
    results = [f"What relaxes {WORDS[binds]}: {RELAXES[binds]}."]
    if binds == "tp" and x.tp > 1:
        half = axes(replace(x, tp=x.tp // 2, ep=min(x.ep, x.tp // 2 * x.cp * x.dp)))["tp"]
        results.append(
            f"Half the tensor-parallel size waits {shown(half.exposed_s, 'seconds')} instead of "
            f"{shown(waits['tp'], 'seconds')} on twice the compute of a device."
        )
    if len(order) > 1:
        results.append(f"Next: {WORDS[order[1]]} ({shown(waits[order[1]], 'seconds')}).")
    return tuple(results)


def _table(axes_by_name: dict[str, OverlapAxis], work: float) -> NamedTable:
    rows = tuple(
        (
            f"{axis.name} {axis.size}",
            "scale-up" if axis.inside else "network",
            shown(axis.sent_bytes, "bytes"),
            shown(axis.bytes_per_s, "bytes_per_s"),
            shown(axis.time_s, "seconds"),
            shown(axis.time_s / work, "fraction"),
            shown(axis.window_s, "seconds"),
            shown(axis.exposed_s, "seconds"),
        )
        for axis in axes_by_name.values()
    )
    heads = (
        "Axis",
        "Link",
        "Sent a step",
        "Bandwidth",
        "Time",
        "Of compute",
        "May hide beside",
        "Waited for",
    )
    return NamedTable("Traffic against compute, per step of a device", AnswerTable(heads, rows))


def _differences(
    x: OverlapInputs, axes_by_name: dict[str, OverlapAxis], least_dp: float
) -> list[Difference]:
    at_peak = x.peak_flops_per_s / (3 * 2 * x.near_bytes_per_s * x.hidden)
    tax = tensor_tax(
        x.tp, x.rate, links(x)["tp"][0], x.hidden, x.layer_weights / (12 * x.hidden**2)
    )
    dp = axes_by_name["dp"]
    listed = [
        Difference(
            "tokens",
            "data parallelism hides from peak MFU / B tokens on",
            TAX,
            x.rate / dp.bytes_per_s,
            least_dp,
            "tokens",
            "Right for bf16 gradients and the whole "
            "backward as window; fp32 gradients need twice as many, and with accumulation or a "
            "pipeline only the last micro-batch counts.",
        ),
        Difference(
            "tax",
            "tax of tensor parallelism = peak / (3 B h), 5 % in the node",
            TAX,
            at_peak,
            tax,
            "fraction",
            "t divides the layer's compute but not its messages: (t - 1) times "
            "as much. B there is the sum of both directions.",
        ),
        Difference(
            "upside_down",
            "hidden share = min(1, transfer / window)",
            MODELER,
            min(1.0, dp.time_s / dp.window_s),
            min(1.0, dp.window_s / dp.time_s) if dp.time_s else 1.0,
            "fraction",
            "Upside down (here for the gradients): the longer the transfer, the less of it hides.",
        ),
        Difference(
            "gap",
            "NVLink to InfiniBand is an 18-fold gap",
            TAX,
            2 * x.near_bytes_per_s / x.far_bytes_per_s,
            x.near_bytes_per_s / x.far_bytes_per_s,
            "ratio",
            "Both directions against one. Like for like it is half of that, and a group "
            "that fills its nodes leaves through all their ports.",
        ),
    ]
    if x.ep > 1:
        world = x.tp * x.cp * x.pp * x.dp
        listed.append(
            Difference(
                "world",
                "devices = dp pp tp ep",
                GUIDE,
                world * x.ep,
                world,
                "devices",
                "Expert parallelism does not multiply: experts share out the devices of a "
                "pipeline stage anew, tp cp dp of them, in an order of their own.",
            )
        )
    if x.n_experts:
        e = x.n_experts
        theirs = 2 * x.local / x.tp * x.hidden * (e - 1) / e * ACTIVATION_BYTES / 2
        ours = expert_exchange_bytes(x.local / x.tp, x.hidden, x.top_k, max(x.ep, 1))
        listed.append(
            Difference(
                "experts",
                "an all-to-all of 2 b s h (E - 1)/E, E experts",
                f"{GUIDE}; {TAX}",
                theirs,
                ours,
                "bytes",
                "Every token goes to k experts, and what counts is the "
                "expert-parallel size, not the number of experts: b s h k (e - 1)/e, for dispatch "
                "and combine each, forward and backward.",
            )
        )
    return listed


def overlap_charts(x: OverlapInputs) -> "tuple[Chart, ...]":
    """Return the traffic of every axis, and its times over the tokens of a micro-batch."""
    from planner.learn.drawing import Axes, ChartText, Line, bars_chart, lines_chart

    result = axes(x)
    used = [axis for axis in result.values() if axis.size > 1]
    work = x.micro_batches * (x.forward_s + x.backward_s)
    waits = {axis.name: axis.exposed_s for axis in used}
    marked = max(waits, key=lambda name: waits[name]) if waits else ""
    bars = [(axis.name, axis.time_s * 1e3) for axis in used]
    tokens = [256 * 2**k for k in range(11) if 256 * 2**k >= x.cp]
    each = [axes(replace(x, tokens=n, sequences=1)) for n in tokens]
    lines = [Line(axis.name, [one[axis.name].time_s * 1e3 for one in each]) for axis in used] + [
        Line(
            "compute",
            [
                x.micro_batches * (y.forward_s + y.backward_s) * 1e3
                for y in (replace(x, tokens=n, sequences=1) for n in tokens)
            ],
        )
    ]
    return (
        bars_chart(
            ChartText(
                "axes",
                "Traffic of every axis in a step",
                f"The hatched bar is waited for longest: {marked or 'none'}.",
            ),
            "Time on the wire (ms)",
            bars,
            log_y=True,
            level=("compute", work * 1e3),
            marked=marked,
        ),
        lines_chart(
            ChartText(
                "tokens",
                "Traffic and compute over the tokens of a micro-batch",
                "Gradients do not depend on the tokens; all other traffic grows"
                " with them, as compute "
                "does.",
            ),
            Axes(
                ("Tokens of a micro-batch", tokens), "ms", log_y=True, here=x.sequences * x.tokens
            ),
            lines,
        ),
    )


CALCULATOR = Calculator(
    "overlap",
    "Overlap calculator",
    "Which traffic hides behind compute, which binds, and what would relax it?",
    OverlapInputs,
    overlap_result,
    overlap_charts,
    (
        Preset("Llama 3 70B, t 8, p 4, 512 H100", {}),
        Preset(
            "Data parallelism alone, bf16 gradients at 40 %",
            {
                "model": "llama3-8b",
                "tp": "1",
                "pp": "1",
                "dp": "64",
                "gradient_bytes": "2",
                "share": "40",
                "domain": "1",
                "kv_share": "25",
                "micro_batches": "1",
            },
        ),
        Preset("131,072 tokens, c 8", {"tokens": "131072", "cp": "8", "dp": "2"}),
        Preset(
            "DeepSeek-V3, 64-way experts",
            {
                "model": "deepseek-v3",
                "tp": "1",
                "pp": "16",
                "ep": "64",
                "dp": "128",
                "device": "h800-sxm-80gb",
                "kv_share": "100",
            },
        ),
    ),
)
