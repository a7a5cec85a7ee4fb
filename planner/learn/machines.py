"""Devices, links and models of the examples, as calculators offer them."""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

from costmodels.comm.placement import Group, place_group
from costmodels.parameters import active_params, total_params
from costmodels.shapes import ModelShape
from hardware.catalogue import TRAINING_PRECISIONS, load_catalogue
from hardware.parts import Accelerator, Cluster, Link

OWN = "own"
DEFAULT_DEVICE, DEFAULT_MODEL = "h100-sxm-80gb", "llama3-70b"


@cache
def devices() -> tuple[tuple[str, str], ...]:
    """Return every accelerator of the catalogue as a choice."""
    return tuple((name, name) for name in load_catalogue().names())


@cache
def ports() -> tuple[tuple[str, str], ...]:
    """Return every scale-out link as a choice, with its speed."""
    links = load_catalogue().links.values()
    return tuple(
        (x.name, f"{x.name}, {x.bytes_per_s / 1e9:g} GB/s")
        for x in links
        if x.kind == "scale-out" and x.bytes_per_s
    )


@cache
def models(own: bool = True) -> tuple[tuple[str, str], ...]:
    """Return the example models as a choice, after `own` where sizes may be typed."""
    from planner.specs.examples import example_names

    result = tuple((name, name) for name in example_names("model"))
    return ((OWN, "sizes of your own"), *result) if own else result


@cache
def shape(name: str) -> ModelShape:
    """Return the architecture of an example model."""
    from planner.specs.examples import example_content
    from planner.specs.loader import load_model

    return load_model(example_content("model", name)).shape


@cache
def seq_len(name: str) -> int:
    """Return the sequence length that an example model is trained with."""
    from planner.specs.examples import example_content
    from planner.specs.loader import load_model

    return load_model(example_content("model", name)).job.seq_len


@cache
def params(name: str) -> float:
    """Return the parameters of an example model."""
    return total_params(shape(name), seq_len(name))


@cache
def active(name: str) -> float:
    """Return the parameters that a token of an example model meets."""
    return active_params(shape(name), seq_len(name))


@cache
def layer_weights(name: str) -> float:
    """Return the weights of a layer that a token meets, mean over the layers of a model."""
    one = shape(name)
    matrices = (1 if one.tied else 2) * one.vocab * one.hidden
    return (active(name) - matrices) / one.layers


def device(name: str) -> Accelerator:
    """Return an accelerator of the catalogue."""
    return load_catalogue().accelerator(name)


def peak(part: Accelerator) -> float:
    """Return the dense peak of the first training precision that a part has, FLOP/s."""
    peaks = part.peak_flops_per_s
    return next(peaks[name] for name in TRAINING_PRECISIONS if name in peaks)


def precision(part: Accelerator) -> str:
    """Return the precision of `peak`."""
    return next(name for name in TRAINING_PRECISIONS if name in part.peak_flops_per_s)


def port(part: Accelerator) -> tuple[Link, float]:
    """Return the usual network port of a part, and how many of them a device has."""
    nic = load_catalogue().typical_nics[part.name]
    return load_catalogue().link(nic.link), nic.n_per_device


def device_port_bytes_per_s(part: Accelerator) -> float:
    """Return the speed of the usual ports of one device, one way."""
    link, n = port(part)
    return link.bytes_per_s * n


def of_device(what: str) -> Any:
    """Return a `Follow` that takes a figure from the field `device`."""
    figures: dict[str, Callable[[Accelerator], float]] = {
        "peak": peak,
        "scale_up": lambda part: part.scale_up_bytes_per_s,
        "ring": lambda part: part.ring_bytes_per_s,
        "scale_out": device_port_bytes_per_s,
        "memory": lambda part: part.memory_bytes,
        "hbm": lambda part: part.hbm_bytes_per_s,
        "domain": lambda part: part.scale_up_domain,
        "gemm": lambda part: part.efficiency.gemm_frac,
    }
    figure = figures[what]

    def follow(values: Mapping[str, Any]) -> float:
        return float(figure(device(values["device"])))

    return follow


def of_model(what: str, otherwise: float | None = None) -> Any:
    """Return a `Follow` that takes a size from the field `model`; `otherwise` for one's own."""

    def follow(values: Mapping[str, Any]) -> float | None:
        name = values["model"]
        if name == OWN:
            return otherwise
        if what == "params":
            return params(name)
        if what == "active":
            return active(name)
        if what == "layer_weights":
            return layer_weights(name)
        if what == "seq_len":
            return float(seq_len(name))
        if what == "ffn":  # what one token meets
            one = shape(name)
            routed = one.top_k * one.expert_ffn + one.shared_ffn if one.n_experts else one.ffn
            return float(routed)
        return float(getattr(shape(name), what))

    return follow


@lru_cache(maxsize=256)
def cluster_of(name: str, n_devices: int) -> Cluster:
    """Return a cluster of the usual nodes of a part with at least so many devices.

    Non-blocking network, the usual ports of the part.
    """
    from planner.specs.loader import cluster_from_dict

    part = device(name)
    per_node = part.devices_per_node
    nodes = max(1, -(-n_devices // per_node))
    return cluster_from_dict(
        {"name": "learn", "pools": [{"name": "p", "accelerator": name, "nodes": nodes}]}
    ).cluster


@lru_cache(maxsize=256)
def group_of(name: str, n_ranks: int, stride: int = 1) -> tuple[Group, Any]:
    """Return the placement of one group of neighbours, and the pool that it is on."""
    cluster = cluster_of(name, n_ranks * stride)
    pool = cluster.pools[0]
    return place_group(n_ranks, stride, pool, cluster.fabric), pool
