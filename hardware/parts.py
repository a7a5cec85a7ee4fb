"""Plain types for the facts that the cost models need.

Numbers only: bytes, bytes per second, FLOP/s, seconds and watts. A bandwidth is one-way and per
device unless its name says otherwise. Where a figure comes from is kept beside the number in the
catalogue (`hardware.catalogue`), not here, so that `costmodels` can import these types without
pulling in a YAML reader.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from hardware.nouns import TPU_DIE, DeviceNoun, vendor_noun
from hardware.torus import Torus, slice_shape

PROTOCOLS = ("ll", "ll128", "simple")
"""NCCL's three wire protocols, from lowest latency to highest bandwidth."""


POWER_EXPONENT = 0.6
"""Growth of sustained rates with a power limit, see `Accelerator.power_share`."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a catalogue figure was read, when, and whether a second source confirms it."""

    source: str
    date: str
    status: str = "confirmed"
    """`confirmed`, or `assumed` when only one weak source (or none) stands behind the figure."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Sustained fractions of the data-sheet rates of one accelerator generation."""

    gemm_frac: float
    """Asymptotic share of the dense peak that large training GEMMs sustain (0-1)."""
    gemm_k_half: float
    """Inner dimension (elements) at which a GEMM tile loses half its rate to prologue/epilogue."""
    wgrad_frac: float
    """Rate of the weight-gradient GEMM over that of the forward GEMM (0-1)."""
    hbm_frac: float
    """Share of the nominal HBM bandwidth that fused memory-bound kernels reach (0-1)."""
    kernel_latency_s: float
    """Time that every kernel costs beside its work: launch, ramp-up, tail."""
    attention_frac: Mapping[str, tuple[float, float]]
    """Per attention kernel: share of the dense peak reached at long sequences, forward and
    backward, over the FLOPs that a causal mask leaves."""
    attention_seq_half: float
    """Sequence length (tokens) at which an attention kernel reaches half of that share."""
    power_note: str = ""
    fp8_gain: float = 1.0
    """Sustained rate of fp8 products over what their recipe says of this generation."""
    recipe_gain: Mapping[str, float] = field(default_factory=dict)
    """The same by recipe, on every part (`delayed`, `mxfp8`, `nvfp4`, ...); 1 where none is
    named."""


@dataclass(frozen=True, slots=True)
class Host:
    """What one device has of the CPU side of its node, when all devices of the node use it."""

    link_bytes_per_s: float
    """Sustained between host and device, one-way (PCIe, NVLink-C2C)."""
    memory_bytes: float
    """Memory of the node over its devices."""
    memory_bytes_per_s: float
    """Data-sheet bandwidth of that memory over the devices of the node."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One catalogue accelerator; all rates dense, all bandwidths one-way per device."""

    name: str
    vendor: str
    generation: str
    """Key of the efficiency and latency tables: `ampere`, `hopper`, `blackwell`, ..."""
    memory_bytes: float
    """What the driver reports, not the number on the box."""
    hbm_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    """Dense peak by precision: `fp32 tf32 bf16 fp16 fp8 fp4 int8`, where the part has it."""
    n_sms: int
    scale_up_link: str
    """Catalogue name of the link inside the scale-up domain."""
    scale_up_bytes_per_s: float
    """Data-sheet bandwidth into the scale-up domain, one-way per device."""
    ring_bytes_per_s: float
    """What a ring collective reaches over the scale-up links, one-way per device."""
    scale_up_domain: int
    """Devices in one scale-up domain on the reference platform."""
    tdp_w: float
    """Power limit of the board; 0 where the maker publishes none, so no energy can be given."""
    efficiency: Efficiency
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    in_switch_all_reduce_bytes_per_s: float = 0.0
    """Bus bandwidth of an all-reduce summed inside the switch (NVLS); 0 when there is none."""
    in_switch_min_ranks: int = 0
    """Smallest group for which the library picks the in-switch all-reduce."""
    n_peer_links: int = 0
    """Peers that a device of the domain has a link of its own to (7 in an MI300X node): a group of
    n ranks uses n - 1 of them; links of V100, 6, fewer than the peers in a node of eight, which is
    a hybrid cube mesh. 0: a switch gives every group the whole bandwidth."""
    devices_per_node: int = 8
    """Devices in a node of the reference platform; fewer than the domain in racks (NVL72)."""
    host: Host | None = None
    """A device's share of the host of the reference platform; None where it is not known."""
    status: str = "confirmed"
    """`assumed` for a part that is announced and that nobody has measured."""
    torus: Torus | None = None
    """How its chips are joined without switches (TPU); the ring rate is that of all its links."""
    power_limit_w: float = 0.0
    """What the board may draw where it is set below `tdp_w`; 0: all of that."""

    @property
    def noun(self) -> DeviceNoun:
        """What one of its devices is called."""
        is_die = self.torus is not None and self.torus.devices_per_chip > 1
        return TPU_DIE if is_die else vendor_noun(self.vendor)

    @property
    def drawn_w(self) -> float:
        """Power that the board may draw, W: its own, or the limit below that; 0: not known."""
        return min(self.power_limit_w or self.tdp_w, self.tdp_w)

    @property
    def power_share(self) -> float:
        """Rate of products and attention under the power limit over that without: (P / TDP)^0.6.

        Power grows with frequency and the square of voltage, which grows with it too, so rates
        fall more slowly than power: by 0.33 at most where voltage follows, by 1 where it cannot.
        Source of 0.6: H100 parts of 500 W and of 700 W sustain 0.60 and 0.73 of one peak.
        """
        if not self.power_limit_w or not self.tdp_w:
            return 1.0
        return float(min(1.0, self.power_limit_w / self.tdp_w) ** POWER_EXPONENT)

    @property
    def pair_bytes_per_s(self) -> float:
        """What a pair of devices exchanges, one-way: one link of a mesh, else the ring rate."""
        n_links = 2 * self.torus.n_axes if self.torus else self.n_peer_links
        return self.ring_bytes_per_s / max(1, n_links)


@dataclass(frozen=True, slots=True)
class Link:
    """A kind of wire: latencies by protocol and the bandwidth caps that go with them.

    Every tuple is in the order of `PROTOCOLS`. The time of a collective is
    base + n_steps * hop + bytes / bandwidth, see `costmodels.comm.collectives`.
    """

    name: str
    kind: str
    """`scale-up` or `scale-out`."""
    bytes_per_s: float
    """Data-sheet bandwidth of one port, one-way; 0 for scale-up links (per accelerator there)."""
    efficiency: float
    """Share of the data-sheet bandwidth that a collective library reaches (0-1)."""
    ring_base_s: tuple[float, float, float]
    ring_hop_s: tuple[float, float, float]
    tree_base_s: tuple[float, float, float]
    tree_hop_s: tuple[float, float, float]
    protocol_bytes_per_s: tuple[float, float, float]
    """Cap on the bus bandwidth of each protocol (LL and LL128 move flags with the data)."""
    protocol_frac: tuple[float, float, float]
    """Share of the wire bandwidth that each protocol leaves for data."""
    p2p_latency_s: float
    """Fixed time of one point-to-point message."""
    lockstep: bool = False
    """Every step of a ring that leaves the domain pays this link's hop, not only the steps between
    domains: the latency grows with the ranks."""
    ring_decline: float = 0.0
    """Exponent x (0-1) by which data-parallel rings lose bandwidth over k domains, (k/2)^-x, where
    all of a cluster run at once, see `costmodels.comm.data_parallel.crowded`."""
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    latency_factor: float = 1.0
    """Factor on latencies that are a library's constants rather than the link's: sums in switches,
    logarithmic all-gathers. 1 unless a reference run says otherwise."""
    sums_in_switch: bool = False
    """Switches of this scale-out network can sum an all-reduce (SHARP), where set up to."""
    status: str = "confirmed"
    """`assumed` for a link that is announced and that nobody has measured."""


@dataclass(frozen=True, slots=True)
class Operations:
    """What running a pool costs and how often it fails: for cost, energy and goodput of a run."""

    power_overhead: float
    """Power of a node at the plug over the power limits of its accelerators."""
    pue: float
    """Power of the building over the power of its machines."""
    device_mtbf_s: float
    """Mean time between failures that end a run, of one accelerator with its share of the rest."""
    restart_s: float
    """From a failure to the first step after it: noticed, replaced, started, loaded."""
    checkpoint_bytes_per_s: float
    """What the storage takes when every device in use writes; of one device, see
    `bandwidth_is_per_device`."""
    bandwidth_is_per_device: bool
    """The storage grows with the devices in use: true of the default, not of a stated figure."""
    checkpoint_s: float | None = None
    """How long a checkpoint stops training, where stated; else states over bandwidth."""
    price_per_device_hour: float | None = None
    """US dollars; None where the cluster file states none."""
    provenance: Mapping[str, Provenance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Platform:
    """A node as it is sold: a server, or a cloud machine. The network ports belong to it."""

    name: str
    kind: str
    """`platform` or `instance`."""
    provider: str
    accelerator: str
    """Catalogue name."""
    devices_per_node: int
    nic: str
    """Catalogue name of the link of its ports."""
    nics_per_node: int
    """Ports for training traffic."""
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tier:
    """One level of the scale-out network above the node."""

    name: str
    n_nodes: int
    """Nodes under one switch group of this tier."""
    oversubscription: float
    """Bandwidth into the tier from below over bandwidth out of it to the next tier (1 = none)."""
    sharp: bool = False
    """Its switches sum all-reduces."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """The scale-out network: tiers from the lowest up, and how nodes are cabled to it."""

    tiers: tuple[Tier, ...] = ()
    rail_optimized: bool = True
    """NIC i of every node is on switch i, so same-index devices are one hop apart."""
    sharp: bool = False
    """All its switches sum all-reduces, those above the last tier too."""

    @property
    def n_summing_tiers(self) -> int:
        """Number of levels from the lowest up whose switches sum, for `Pool.n_summing_tiers`."""
        if self.sharp:
            return 1 + len(self.tiers)
        flags = [tier.sharp for tier in self.tiers]
        return flags.index(False) if False in flags else len(flags)


@dataclass(frozen=True, slots=True)
class Pool:
    """Identical nodes of one accelerator."""

    name: str
    accelerator: Accelerator
    n_nodes: int
    devices_per_node: int
    scale_up_domain: int
    """Devices that reach one another over the scale-up link (8 in an HGX node, 72 in an NVL72)."""
    scale_up: Link
    nics_per_node: int
    nic: Link
    memory_margin_bytes: float
    """Memory that a plan must leave free on every device."""
    n_summing_tiers: int = 0
    """Lowest levels of the scale-out network whose switches sum all-reduces of this pool (SHARP):
    1 up to the first tier of the fabric, 1 + its tiers for the whole network, 0 for none."""
    host: Host | None = None
    """A device's share of the host of its node; None: nothing can be offloaded to it."""
    slice: tuple[int, ...] = ()
    """Chips along the axes of a slice where the cluster file says them, shortest axis first."""
    domain_nodes: int = 0
    """Nodes that a scale-up domain has where jobs use fewer of them, `scale_up_domain` devices:
    16 of 18, so that groups of 16, 32 and 64 fit. 0: they use all."""

    @property
    def n_devices(self) -> int:
        """Number of accelerators in the pool."""
        return self.n_nodes * self.devices_per_node

    def first_devices(self, n: int) -> "Pool":
        """Return the pool of the first `n` devices: whole nodes, or a part of one.

        Raises `ValueError` for a number that is neither.
        """
        if n == self.n_devices:
            return self
        total = self.devices_per_node
        if not 1 <= n <= self.n_devices or (n % total and (n > total or total % n)):
            raise ValueError(f"{n} of {self.n_devices} devices are no whole nodes of {total}")
        domain = min(self.scale_up_domain, n)
        if n >= total:
            return replace(self, n_nodes=n // total, scale_up_domain=domain)
        ports = max(1, self.nics_per_node * n // total)
        return replace(
            self, n_nodes=1, devices_per_node=n, scale_up_domain=domain, nics_per_node=ports
        )

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """Chips along the axes of a slice, the scale-up domain of a torus; () without one.

        Of a part of a stated slice the usual shape.
        """
        torus = self.accelerator.torus
        if torus is None:
            return ()
        n_stated = prod(self.slice) * torus.devices_per_chip
        if self.slice and n_stated == self.scale_up_domain:
            return self.slice
        return slice_shape(torus, self.scale_up_domain)

    @property
    def nic_bytes_per_s(self) -> float:
        """Reachable scale-out bandwidth, one-way per device, when every device of a node talks."""
        return (
            self.nic.bytes_per_s * self.nic.efficiency * self.nics_per_node / self.devices_per_node
        )

    @property
    def usable_bytes(self) -> float:
        """Memory of one device that a plan may fill."""
        return self.accelerator.memory_bytes - self.memory_margin_bytes


def used_tiers(fabric: Fabric, pool: Pool) -> tuple[Tier, ...]:
    """Return the tiers of a fabric by the nodes that jobs on a pool use of each.

    All of them, unless jobs use a part of every scale-up domain (`Pool.domain_nodes`).
    """
    if not pool.domain_nodes:
        return fabric.tiers
    used = pool.scale_up_domain // pool.devices_per_node
    return tuple(
        replace(tier, n_nodes=max(1, tier.n_nodes * used // pool.domain_nodes))
        for tier in fabric.tiers
    )


@dataclass(frozen=True, slots=True)
class PoolLink:
    """What joins two pools of a cluster: halls, sites, or the top of their common fabric."""

    pools: tuple[str, str]
    """Names of the two pools, in either order."""
    bytes_per_s: float
    """What all flows between the two pools share, one-way."""
    latency_s: float
    """Fixed time of one message between them."""
    price_per_byte: float = 0.0
    """US dollars for a byte that crosses, in either direction; 0 where it is free."""
    is_wan: bool = False
    """The pools are at different places: messages leave the site."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """An inventory: pools of nodes on one fabric. A plan uses one pool, or several joined."""

    name: str
    pools: tuple[Pool, ...]
    fabric: Fabric
    links: tuple[PoolLink, ...] = ()
    """Between pools that the fabric does not join as it joins its own nodes."""
