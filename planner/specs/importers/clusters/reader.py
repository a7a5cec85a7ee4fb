"""From dumps of a cluster to a cluster file: recognized by content, merged, parts looked up.

What the dumps do not say is assumed and marked, or asked for in one error; see
docs/import_clusters.md for the rules.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hardware.catalogue import Catalogue, load_catalogue
from planner.errors import BadValue, UsageError
from planner.specs.importers.clusters.accelerators import ANY_OF_MAKER, identify
from planner.specs.importers.clusters.document import ANONYMOUS, build_cluster_file
from planner.specs.importers.clusters.facts import (
    Devices,
    Evidence,
    Facts,
    Hardware,
    Node,
    Ports,
    Position,
)
from planner.specs.importers.clusters.members import ImportContext, sources_of
from planner.specs.importers.clusters.options import ImportOptions, checked_answers, checked_link
from planner.specs.importers.dump_text import bad_dump, clean, json_of
from planner.specs.importers.dumps import (
    kubernetes,
    nccl_topology,
    nvidia_smi,
    rocm_smi,
    sinfo,
    slurm,
    slurm_topology,
)
from planner.specs.importers.hostlist import compress_hosts, expand_hosts, natural_key
from planner.specs.importers.imported import Imported

FORMATS = (
    "sinfo, scontrol show node|topology (text or --json), kubectl get nodes|pods -o json,"
    " nvidia-smi (-L, -q, topo -m, --query-gpu), NCCL_TOPO_DUMP_FILE, rocm-smi, amd-smi"
)


_READERS: tuple[tuple[Callable[[str], bool], Callable[[str, str], Facts]], ...] = (
    (nccl_topology.looks_like_nccl_topology, nccl_topology.read_nccl_topology),
    (slurm_topology.looks_like_slurm_topology, slurm_topology.read_topology),
    (slurm.looks_like_slurm, slurm.read_nodes),
    (rocm_smi.looks_like_rocm_smi, rocm_smi.read_rocm_smi),
    (nvidia_smi.looks_like_nvidia_smi, nvidia_smi.read_nvidia_smi),
    (sinfo.looks_like_sinfo, sinfo.read_table),
)
"""Formats other than Kubernetes', which needs the tolerations."""


_OTHER_FORMS = (
    (re.compile(r"\ANAME +STATUS +ROLES"), "kubectl get nodes -o json"),
    (re.compile(r"^Name: +\S+\nRoles: ", re.MULTILINE), "kubectl get nodes -o json"),
    (re.compile(r"\A(?:NODELIST|PARTITION|HOSTNAMES) "), sinfo.COMMAND),
    (re.compile(r"\A +JOBID +PARTITION"), "scontrol show node"),
    (re.compile(r"\+ (?:PCI|NVL|NET)\["), "the job with NCCL_TOPO_DUMP_FILE=topo.xml"),
)
"""What commands print in forms that do not hold what is needed, and what to run instead."""


def looks_like_dump(text: str) -> bool:
    """Tell whether a text is one of the formats that `import_cluster` reads."""
    text = clean(text)
    return kubernetes.looks_like_kubernetes(text) or any(fits(text) for fits, _ in _READERS)


def import_cluster(
    files: Sequence[tuple[str, str]], options: ImportOptions = ImportOptions()
) -> Imported:
    """Return the cluster file that dumps of one cluster describe.

    `files` are pairs of a name and a text, see `dump_text.read_dump`. Raises `SpecError` for a
    text that cannot be read, and with all questions at once for parts that the user has to name.
    """
    cleaned = [(name, clean(text)) for name, text in files]
    facts = [part for name, text in cleaned for part in _read(name, text, options)]
    notes = list(dict.fromkeys(note for one in facts for note in one.notes))
    catalogue = load_catalogue()
    answers = checked_answers(options.accelerators, catalogue)
    options = replace(options, accelerators=answers, nic=checked_link(options.nic, catalogue))
    nodes = _listed_nodes(facts)
    hardware = [one for one in facts if one.hardware]
    if not nodes:
        nodes = _from_hardware(facts, hardware, options)
    else:
        nodes = _selected(nodes, options)
        nodes = _with_hardware(nodes, hardware, options, catalogue) if hardware else nodes
    nodes = _with_positions(nodes, facts)
    nodes = _without_pods(nodes, facts, options, notes)
    return build_cluster_file(nodes, ImportContext(facts, options, notes, catalogue))


def _read(name: str, text: str, options: ImportOptions) -> list[Facts]:
    """Return what a text says; one that holds nodes and their topology says both."""
    if not text.strip():
        raise bad_dump(name, "is empty", "give the output of the command")
    if kubernetes.looks_like_kubernetes(text):
        return [kubernetes.read_kubernetes(text, name, options.tolerated)]
    fitting = [read for fits, read in _READERS if fits(text)]
    both = {slurm_topology.read_topology, slurm.read_nodes}
    result = fitting if set(fitting) == both else fitting[:1]
    if not result:
        json_like = text.lstrip()[:1] in ("{", "[")
        if json_like and json_of(text) is None:
            raise bad_dump(name, "is JSON that is cut off or broken", "give the whole output")
        for pattern, command in _OTHER_FORMS:
            if pattern.search(text):
                raise bad_dump(name, "says too little in this form", f"run {command}")
        raise bad_dump(name, "is no dump of a cluster that is known", f"known: {FORMATS}")
    return [read(text, name) for read in result]


def _listed_nodes(facts: Sequence[Facts]) -> list[Node]:
    """Return the nodes that the files list, each once."""
    listed = [one for one in facts if one.nodes]
    systems = {one.format.partition(",")[0] for one in listed}
    if len(systems) > 1:
        names = " and ".join(sorted(systems))
        raise bad_dump(sources_of(facts), f"nodes of {names} in one import", "give one of them")
    nodes: dict[str, Node] = {}
    for one in listed:
        for node in one.nodes:
            nodes[node.name] = _merged(nodes[node.name], node) if node.name in nodes else node
    return list(nodes.values())


def _with_positions(nodes: list[Node], facts: Sequence[Facts]) -> list[Node]:
    """Return the nodes with their places in the topology of another file."""
    positions = {name: position for one in facts for name, position in one.positions.items()}
    if not positions:
        return nodes
    with_devices = [node.name for node in nodes if node.devices]
    if with_devices and not positions.keys() & set(with_devices):
        message = f"the topology names none of the nodes: {with_devices[0]} is not in it"
        raise bad_dump(sources_of(facts), message, "give both of the same cluster")
    return [replace(node, position=positions.get(node.name, Position())) for node in nodes]


def _without_pods(
    nodes: list[Node], facts: Sequence[Facts], options: ImportOptions, notes: list[str]
) -> list[Node]:
    """Return the nodes without the devices that pods hold, where the pods are listed."""
    in_use = [one.in_use for one in facts if one.in_use is not None]
    if in_use:
        return [_less_pods(node, in_use) for node in nodes]
    on_kubernetes = any(one.nodes and one.format.startswith("Kubernetes") for one in facts)
    if on_kubernetes and not options.everything:
        notes.append(
            "what pods hold is not said, so all schedulable nodes count as free: give"
            " `kubectl get pods -A -o json` too"
        )
    return nodes


def _merged(first: Node, second: Node) -> Node:
    """Return a node that two files describe: each fills what the other leaves open."""
    more = first.devices if sum(d.n for d in first.devices) else second.devices
    # The file that says what is in use knows better than one that had to count nothing as free.
    free = {d.evidence.name: max(d.n_free, *_free_of(second, d)) for d in more}
    devices = tuple(replace(d, n_free=free[d.evidence.name]) for d in more)
    return replace(
        first,
        devices=devices,
        unhealthy=first.unhealthy or second.unhealthy,
        busy=first.busy or second.busy,
        cpu_work=first.cpu_work or second.cpu_work,
        partitions=tuple(dict.fromkeys((*first.partitions, *second.partitions))),
        instance=first.instance or second.instance,
        position=first.position if first.position.path else second.position,
        ports=_both_ports(first.ports, second.ports),
    )


def _free_of(node: Node, devices: Devices) -> list[int]:
    same = [d.n_free for d in node.devices if d.evidence.name == devices.evidence.name]
    return [*same, 0]


def _less_pods(node: Node, in_use: Iterable[Mapping[str, Mapping[str, int]]]) -> Node:
    """Return the node without the devices that pods hold."""
    devices_of_pods: Counter[str] = Counter()
    for use in in_use:
        devices_of_pods.update(use.get(node.name, {}))
    devices = tuple(
        d if d.shared else replace(d, n_free=max(0, d.n_free - devices_of_pods[d.resource]))
        for d in node.devices
    )
    return replace(node, devices=devices)


def _from_hardware(
    facts: Sequence[Facts], dumps: Sequence[Facts], options: ImportOptions
) -> list[Node]:
    """Return the nodes that look like the one whose inside is given."""
    if not dumps:
        fix = "give `scontrol show node` or `kubectl get nodes -o json` too"
        raise bad_dump(sources_of(facts), "no file lists nodes or shows one", fix)
    inside = _one_inside(dumps)
    names = _hosts(options.nodes) if options.nodes else (ANONYMOUS,)
    n_seen = sum(devices.n for devices in inside.devices)
    # Ports that only one job used are no count of those of the node.
    hides = inside.may_hide_devices and options.devices > n_seen
    ports = replace(inside.ports, n=0) if hides else inside.ports
    return [Node(name, devices=inside.devices, ports=ports) for name in names]


def _one_inside(dumps: Sequence[Facts]) -> Hardware:
    """Return what several dumps of one node say together."""
    insides = [one.hardware for one in dumps if one.hardware]
    sharing = [h for h in insides if any(d.shared for d in h.devices)]
    kinds = max((sharing or insides), key=lambda h: len(h.devices)).devices
    if len(kinds) == 1:
        only = kinds[0]
        complete = [h for h in insides if not h.may_hide_devices]
        counts = {sum(d.n for d in h.devices) for h in complete}
        if len(counts) > 1:
            message = f"the dumps of one node show {' and '.join(map(str, sorted(counts)))} GPUs"
            raise bad_dump(sources_of(dumps), message, "give dumps of the same node")
        n = counts.pop() if counts else only.n
        evidence = only.evidence
        for inside in insides:
            for device in inside.devices:
                evidence = _both(evidence, device.evidence)
        kinds = (replace(only, evidence=evidence, n=n, n_free=0 if only.shared else n),)
    ports = Ports()
    for inside in insides:
        ports = _both_ports(ports, inside.ports)
    domain = next((h.domain for h in insides if h.domain), 0)
    return Hardware(kinds, ports, domain, all(h.may_hide_devices for h in insides))


def _both(first: Evidence, second: Evidence) -> Evidence:
    labels = [*first.labels, *second.labels]
    labels += [second.name] if second.name and second.name != first.name and first.name else []
    return Evidence(
        name=first.name or second.name,
        labels=tuple(dict.fromkeys(labels)),
        memory_bytes=second.memory_bytes or first.memory_bytes,
        n_links=second.n_links or first.n_links,
        bridged=first.bridged if second.bridged is None else second.bridged,
        pci_id=second.pci_id or first.pci_id,
        capability=_more_exact(first.capability, second.capability),
    )


def _more_exact(first: str, second: str) -> str:
    """Return the capability that says more than the maker."""
    return first if second in ("", *ANY_OF_MAKER) and first else second


def _both_ports(first: Ports, second: Ports) -> Ports:
    """Return what two inputs say of ports together; each fills what the first leaves open."""
    link = first if first.link or not second.link else second
    number = first if first.n else second
    return Ports(
        link=link.link,
        n=number.n,
        bytes_per_s=link.bytes_per_s,
        kind=link.kind or first.kind or second.kind,
        why=link.why or first.why or second.why,
        why_n=number.why_n,
    )


def _with_hardware(
    nodes: list[Node], dumps: Sequence[Facts], options: ImportOptions, catalogue: Catalogue
) -> list[Node]:
    """Return the nodes with what the dump of one of them shows, for all that look the same."""
    inside = _one_inside(dumps)
    if len(inside.devices) != 1:
        return nodes
    seen = inside.devices[0]
    kinds: dict[tuple[str, int], Evidence] = {}
    for node in nodes:
        for device in node.devices:
            if not device.shared:
                kinds.setdefault((device.evidence.name, device.n), device.evidence)
    fitting = {}
    for (name, n), evidence in kinds.items():
        merged = _both(evidence, seen.evidence)
        match = identify(merged, n, catalogue, options.accelerators)
        fits = not match.contradiction and (match.part or match.candidates or match.elsewhere)
        if fits and (n == seen.n or (inside.may_hide_devices and seen.n < n)):
            fitting[name, n] = merged
    what = f"{seen.n} x {seen.evidence.name or 'GPU'}"
    if not fitting:
        message = f"no node type of the list fits {sources_of(dumps)} ({what})"
        shown = ", ".join(f"{name or 'gpu'} x {n}" for name, n in kinds) or "no GPU at all"
        raise bad_dump(
            sources_of(dumps), message, f"the list has {shown}; give dumps of one cluster"
        )
    if len({name for name, _ in fitting}) > 1:
        shown = " or ".join(f"{name or 'gpu'} x {n}" for name, n in fitting)
        message = f"is of which node type: {shown}?"
        fix = "add `nvidia-smi -L` of that node, or restrict with --partition or --nodes"
        raise bad_dump(sources_of(dumps), message, fix)
    return [_seen_inside(node, fitting, inside) for node in nodes]


def _seen_inside(
    node: Node, fitting: Mapping[tuple[str, int], Evidence], inside: Hardware
) -> Node:
    if not any((d.evidence.name, d.n) in fitting for d in node.devices if not d.shared):
        return node
    devices = tuple(
        replace(d, evidence=_both(d.evidence, inside.devices[0].evidence))
        if (d.evidence.name, d.n) in fitting and not d.shared
        else d
        for d in node.devices
    )
    hides = inside.may_hide_devices and inside.devices[0].n < max(d.n for d in node.devices)
    ports = replace(inside.ports, n=0) if hides else inside.ports
    return replace(node, devices=devices, ports=_both_ports(node.ports, ports))


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return expand_hosts(text)
    except BadValue as error:
        raise UsageError(f"--nodes: {error.message}", error.hint) from None


def _selected(nodes: list[Node], options: ImportOptions) -> list[Node]:
    """Return the nodes that --partition, --nodes and --selector leave."""
    partition = options.partition.rstrip("*")  # marks the default in what sinfo prints
    if partition:
        partitions = sorted({p for node in nodes for p in node.partitions})
        if partition not in partitions:
            fix = (
                f"partitions: {', '.join(partitions)}"
                if partitions
                else "the dump names no partition"
            )
            raise UsageError(f"--partition: no node is in {partition!r}", fix)
        nodes = [node for node in nodes if partition in node.partitions]
    if options.nodes:
        wanted = set(_hosts(options.nodes))
        missing = sorted(wanted - {node.name for node in nodes}, key=natural_key)
        if missing:
            raise UsageError(
                f"--nodes: not in the dump: {compress_hosts(missing)}", "name nodes that it lists"
            )
        nodes = [node for node in nodes if node.name in wanted]
    if options.selector:
        pairs = options.selector.items()
        nodes = [n for n in nodes if all(n.labels.get(key) == value for key, value in pairs)]
        if not nodes:
            requested = ",".join(f"{key}={value}" for key, value in pairs)
            raise UsageError(
                f"--selector: no node has {requested}", "kubectl get nodes --show-labels"
            )
    return nodes
