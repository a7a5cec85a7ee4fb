"""The numbers that a calibration may set, by dotted name, with unit, range, prior and source.

    part.<accelerator>.gemm_frac | attention_scale | hbm_frac
    recipe.<recipe>.gain
    generation.<generation>.gemm_frac | attention_scale | hbm_frac | kernel_latency_s | fp8_gain
                            | gemm_k_half | attention_seq_half | <kernel>_forward | _backward
    link.<link>.efficiency | ring_decline | hop_scale | base_scale | simple_scale | ll_cap_scale
                | library_latency_scale | p2p_scale | in_switch_scale
    stack.<profile>.<number of `costmodels.stacks.NUMBERS`>
    shared.<number of `costmodels.stacks.SHARED`>
    anchor.compute | scale_up | scale_out | memory_bytes

The prior is what prices a plan where a calibration says nothing: the catalogue's figure or the
profile's. A scale multiplies several figures of one kind and has the prior 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from costmodels.precision import RECIPES
from costmodels.stacks import NUMBERS, SHARED, STACKS
from hardware.catalogue import Catalogue, load_catalogue
from hardware.parts import Accelerator, Link, Provenance

ANCHORS = ("anchor.compute", "anchor.scale_up", "anchor.scale_out")
"""Factors on time that a measured step of the user's own sets; 1 without one."""
HELD = "anchor.memory_bytes"
"""Memory of every device that a measured peak of the user's own asks for; 0 without one."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a calibration."""

    name: str
    unit: str
    """`s`, `bytes`, `parameters`; empty for shares and factors."""
    prior: float
    low: float
    """Least value that makes sense."""
    high: float
    meaning: str
    source: str
    """Where the prior comes from."""

    @property
    def kind(self) -> str:
        """`generation`, `part`, `recipe`, `link`, `stack`, `shared` or `anchor`."""
        return self.name.split(".")[0]

    @property
    def of(self) -> str:
        """What it belongs to: a generation, part, recipe, link or stack; empty for all."""
        return self.name.partition(".")[2].rpartition(".")[0]

    @property
    def field(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2]


_GENERATION = {
    "gemm_frac": ("", 0.3, 0.98, "share of the dense peak that large matrix products sustain"),
    "attention_scale": ("", 0.5, 2.0, "factor on the rates of all attention kernels"),
    "hbm_frac": ("", 0.4, 0.95, "share of the memory bandwidth that fused kernels reach"),
    "kernel_latency_s": ("s", 1e-6, 30e-6, "time of a kernel beside its work"),
    "fp8_gain": ("", 0.5, 1.5, "rate of fp8 products over what the recipe says"),
    "gemm_k_half": ("", 1.0, 2048.0, "inner length at which a product reaches half its rate"),
    "attention_seq_half": ("", 10.0, 8192.0, "tokens at which attention reaches half its rate"),
}
PART_FIELDS = ("gemm_frac", "attention_scale", "hbm_frac")
"""Numbers of a generation that a part of it may have of its own."""
RECIPE_NAMES = tuple(sorted({r.fp8_recipe or r.fp4_recipe for r in RECIPES.values()} - {""}))
_RECIPE_GAIN = "rate of products in fp8 or fp4 over what the recipe says, on every part"
DIRECTIONS = ("forward", "backward")
"""Of an attention kernel: `generation.<generation>.<kernel>_<direction>`, a share of the peak."""
_KERNEL = (0.01, 0.98, "share of the dense peak that the kernel reaches over long sequences")
_LINK = {
    "efficiency": ("", 0.2, 1.0, "share of the data-sheet bandwidth that a collective reaches"),
    "ring_decline": (
        "",
        0.0,
        1.0,
        "unhidden data-parallel rings over k domains: (k/2)^-x",
    ),
    "hop_scale": ("", 0.25, 8.0, "factor on the latency of a step of a ring or a tree"),
    "base_scale": ("", 0.25, 8.0, "factor on the latency of starting a collective or message"),
    "simple_scale": ("", 0.1, 10.0, "factor on latencies of the Simple protocol alone"),
    "ll_cap_scale": ("", 0.1, 10.0, "factor on the bandwidth caps of LL and LL128"),
    "library_latency_scale": ("", 0.1, 10.0, "factor on latencies that are the library's own"),
    "p2p_scale": ("", 0.1, 10.0, "factor on the latency of a message alone"),
    "in_switch_scale": ("", 0.2, 3.0, "factor on the rate of sums in the scale-up switch"),
}
_STACK = {
    "elementwise_factor": ("", "traffic of memory-bound operators over perfectly fused ones"),
    "host_s_per_layer": ("s", "least time to launch a layer, forward and backward"),
    "tp_hop_s": ("s", "wait for the last rank of a tp collective, per further rank"),
    "fixed_step_s": ("s", "time of a step outside the model"),
    "logit_bytes": ("bytes", "memory per logit at the peak of the loss"),
    "queued_tensors": ("", "full-width tensors that tp collectives hold behind a full queue"),
}
_SHARED = {
    "bucket_params": ("parameters", "least parameters of a bucket of data-parallel traffic"),
    "overlap_slowdown": ("", "share by which compute slows beside a collective"),
    "node_spread": ("", "standard deviation of the speed of nodes over its mean"),
    "context_bytes": ("bytes", "driver context, kernels, workspaces of a device"),
    "communicator_bytes": ("bytes", "buffers of a communicator that leaves the node"),
    "fragmentation_frac": ("", "activations lost to the allocator"),
    "stalled_hop_s": ("s", "ring step of a tp collective beside blocked pipeline messages"),
    "stalled_message_s": ("s", "pipeline message blocked beside tp over more than two domains"),
    "tensor_wire_frac": ("", "share of the wire that one blocking collective a tensor reaches"),
    "compiled_share": ("", "traffic of compiled operators over that of eager ones"),
    "unfused_norm_factor": ("", "traffic of a norm that is not fused over that of one kernel"),
    "routing_host_s": ("s", "launch time of what routed experts add to a layer"),
    "synced_host_share": ("", "launches of an expert layer that the device waits for in any case"),
    "graph_launch_s": ("s", "launch of one captured graph"),
    "host_share_without_tp": ("", "launch time of a layer at tp 1 over that with tp"),
}
_ANCHOR = {
    "compute": "factor on the time of all work of devices and hosts",
    "scale_up": "factor on the time of traffic inside the scale-up domain",
    "scale_out": "factor on the time of traffic between domains",
}


def parameters(catalogue: Catalogue) -> dict[str, Parameter]:
    """Return all numbers that a calibration may set, by name, in a fixed order."""
    results: list[Parameter] = []
    for generation, part in generations(catalogue).items():
        results += _of_generation(generation, part)
    for part in catalogue.accelerators.values():
        results += _of_part(part)
    for recipe in RECIPE_NAMES:
        name, source = f"recipe.{recipe}.gain", "costmodels.precision"
        results.append(Parameter(name, "", 1.0, 0.5, 1.5, _RECIPE_GAIN, source))
    for link in catalogue.links.values():
        results += _of_link(link)
    for stack in STACKS.values():
        for field, (unit, meaning) in _STACK.items():
            low, high = NUMBERS[field]
            name, prior = f"stack.{stack.name}.{field}", float(getattr(stack, field))
            results.append(Parameter(name, unit, prior, low, high, meaning, "docs/stacks.md"))
    for field, (unit, meaning) in _SHARED.items():
        low, high = SHARED[field]
        prior = float(getattr(STACKS["fused"], field))
        name = f"shared.{field}"
        results.append(Parameter(name, unit, prior, low, high, meaning, "docs/stacks.md"))
    held_meaning = "memory that measured runs hold beyond what slack explains"
    results.append(Parameter(HELD, "bytes", 0.0, 0.0, 1e12, held_meaning, "no reference run"))
    for field, meaning in _ANCHOR.items():
        name = f"anchor.{field}"
        results.append(Parameter(name, "", 1.0, 0.1, 10.0, meaning, "no reference run"))
    return {parameter.name: parameter for parameter in results}


@cache
def known_parameters() -> Mapping[str, Parameter]:
    """Return `parameters` of the catalogue that is installed."""
    return parameters(load_catalogue())


def generations(catalogue: Catalogue) -> dict[str, Accelerator]:
    """Return the first accelerator of every generation; all of one share its efficiencies."""
    entries: dict[str, Accelerator] = {}
    for part in catalogue.accelerators.values():
        entries.setdefault(part.generation, part)
    return entries


def _source(provenance: Mapping[str, Provenance], key: str) -> str:
    result = provenance.get(key)
    return f"{result.source} ({result.date})" if result else "definition"


def _of_generation(generation: str, part: Accelerator) -> list[Parameter]:
    eff = part.efficiency
    priors = {
        "gemm_frac": eff.gemm_frac,
        "attention_scale": 1.0,
        "hbm_frac": eff.hbm_frac,
        "kernel_latency_s": eff.kernel_latency_s,
        "gemm_k_half": eff.gemm_k_half,
        "attention_seq_half": eff.attention_seq_half,
    }
    if "fp8" in part.peak_flops_per_s:
        priors["fp8_gain"] = eff.fp8_gain
    keys = {"attention_scale": "attention_frac"}
    results = []
    for field, prior in priors.items():
        unit, low, high, meaning = _GENERATION[field]
        source = _source(part.provenance, f"efficiency.{keys.get(field, field)}")
        name = f"generation.{generation}.{field}"
        results.append(Parameter(name, unit, prior, low, high, meaning, source))
    low, high, meaning = _KERNEL
    source = _source(part.provenance, "efficiency.attention_frac")
    for kernel, shares in eff.attention_frac.items():
        for direction, prior in zip(DIRECTIONS, shares, strict=True):
            name = f"generation.{generation}.{kernel}_{direction}"
            results.append(Parameter(name, "", prior, low, high, meaning, source))
    return results


def _of_part(part: Accelerator) -> list[Parameter]:
    """Return what a part may have apart from its generation, whose figures are its priors."""
    eff = part.efficiency
    priors = (eff.gemm_frac, 1.0, eff.hbm_frac)
    results = []
    for field, prior in zip(PART_FIELDS, priors, strict=True):
        unit, low, high, meaning = _GENERATION[field]
        name, source = f"part.{part.name}.{field}", f"generation {part.generation}"
        results.append(Parameter(name, unit, prior, low, high, f"{meaning}, of this part", source))
    return results


def _of_link(link: Link) -> list[Parameter]:
    keys = {"efficiency": "efficiency", "hop_scale": "ring_hop_s", "base_scale": "ring_base_s"}
    keys |= {"simple_scale": "ring_hop_s", "ll_cap_scale": "protocol_bytes_per_s"}
    keys |= {"p2p_scale": "p2p_latency_s", "ring_decline": "ring_decline"}
    priors = {"efficiency": link.efficiency, "ring_decline": link.ring_decline}
    one_kind = {"in_switch_scale": "scale-up", "ring_decline": "scale-out"}
    results = []
    for field, (unit, low, high, meaning) in _LINK.items():
        if link.kind != one_kind.get(field, link.kind):
            continue
        prior = priors.get(field, 1.0)
        name, source = f"link.{link.name}.{field}", _source(link.provenance, keys.get(field, ""))
        results.append(Parameter(name, unit, prior, low, high, meaning, source))
    return results
