"""Load model and cluster files into the plain types of the cost models.

A path may be a file or the bare name of a packaged example (`llama3-70b`, `h100-x512`). Overrides
(`--set PATH=VALUE`) apply to the document before it is checked. Every defect is a `SpecError`.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from costmodels.parameters import active_params, total_params
from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import (
    PROTOCOLS,
    Accelerator,
    Cluster,
    Fabric,
    Host,
    Link,
    Operations,
    Platform,
    Pool,
    Provenance,
    Tier,
)
from planner import units
from planner._faults import KEYS, Kind, expect, is_sweep, kind_of, validate
from planner.errors import CatalogError, Problem, SpecError, UsageError
from planner.intake.dump_text import read_dump
from planner.intake.formats import FORMATS, find_format, text_of
from planner.intake.hostlist import compress_hosts, expand_hosts
from planner.intake.huggingface import config_in_folder, mistaken_name, read_as
from planner.intake.imported import Imported, scalar, value_at
from planner.schemas import (
    NO_DETAILS,
    AcceleratorSpec,
    ClusterFile,
    DetailsSpec,
    Fault,
    ModelFile,
    ModelSpec,
    OperationsSpec,
    PoolSpec,
    SearchSpec,
    cluster_faults,
    domain_fault,
    model_faults,
    name_fault,
)
from planner.yamlfile import (
    MAX_BYTES,
    Document,
    KeyPath,
    close_names,
    load_yaml,
    parse_yaml,
    path_text,
    read_text,
    set_path,
)

if TYPE_CHECKING:
    from hardware.catalogue import Catalogue

Part = TypeVar("Part", Accelerator, Link, Platform)
Overrides = Iterable[tuple[str, object]]
"""Pairs of a dotted path and a value, such as `("pools.0.nodes", "16")`."""

EVERY_FIGURE = "every figure (announced)"
"""Stands for the figures of a part that nobody has measured."""
IN_SWITCH_MIN_RANKS = 6
"""Smallest group for which a library lets switches sum, where a file gives such a rate to a part
without one: as on Blackwell."""
_SCALE_UP_FIGURES = (
    "scale_up_bytes_per_s",
    "ring_bytes_per_s",
    "in_switch_all_reduce_bytes_per_s",
)


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A model file as read."""

    shape: ModelShape
    job: TrainingJob
    document: dict[str, Any]
    """Canonical content: every default filled in, the same for every way of writing it."""
    path: str
    """File it came from; empty for a dict."""
    format: str = "a model file"
    """What the file is, in words."""
    notes: tuple[str, ...] = ()
    """What was assumed and left out when it was read from another format."""
    details: DetailsSpec = NO_DETAILS
    """What emitted files say of the model and no figure depends on."""
    search: SearchSpec | None = None
    """What the file asks `solve` to search for."""
    listed: tuple[str, ...] = ()
    """Recipes that the file leaves open; none where it names one."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """The recipes that the file leaves open, or its only one."""
        return self.listed or (self.job.precision,)


@dataclass(frozen=True, slots=True)
class PoolSource:
    """What the file of a pool says that the pool itself does not show."""

    index: int
    """Place of the pool in the file."""
    assumed: tuple[str, ...]
    """Catalogue figures in use without a second source: `<part>.<figure>`."""
    node_keys: tuple[str, ...]
    """Fields of the pool that change the number of its nodes; none where more has to change."""
    own_domain: bool
    """The file states the scale-up domain, so it stays with more nodes."""
    hosts: tuple[str, ...] = ()
    """Names of the nodes that plans use, in network order; none where the file does not say."""
    host: tuple[tuple[str, str], ...] = ()
    """What the file states of the host (`HOST_KEYS`)."""
    network: tuple[tuple[str, str | bool], ...] = ()
    """Latencies and in-switch sums where the file replaces the catalogue's, in base units."""
    announced: tuple[str, ...] = ()
    """Accelerators and links that are announced and that nobody has measured."""


@dataclass(frozen=True, slots=True)
class ClusterInput:
    """A cluster file as read, with the catalogue figures filled in."""

    cluster: Cluster
    document: dict[str, Any]
    """Canonical content: every default filled in, quantities in base units."""
    path: str
    """File it came from; empty for a dict."""
    sources: tuple[PoolSource, ...]
    """By pool."""
    operations: tuple[Operations, ...]
    """By pool: what running costs and how often it fails."""
    notes: tuple[str, ...] = ()
    """What was left out or assumed where the file is a dump of a cluster."""
    from_dump: bool = False
    """The nodes are those that were free when a dump was made, no number that somebody chose."""

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumed figures of all pools, each once."""
        return tuple(dict.fromkeys(x for source in self.sources for x in source.assumed))

    @property
    def announced(self) -> tuple[str, ...]:
        """The announced parts of all pools, each once."""
        return tuple(dict.fromkeys(x for source in self.sources for x in source.announced))

    def only(self, index: int) -> "ClusterInput":
        """Return the cluster with one of its pools, as if the file listed no other."""
        if len(self.cluster.pools) == 1:
            return self
        pool = self.cluster.pools[index]
        return ClusterInput(
            cluster=dataclasses.replace(self.cluster, pools=(pool,)),
            document={**self.document, "pools": [self.document["pools"][index]]},
            path=self.path,
            sources=(self.sources[index],),
            operations=(self.operations[index],),
            notes=self.notes,
            from_dump=self.from_dump,
        )

    def pool(self, name: str) -> "ClusterInput":
        """Return the cluster with the pool of this name alone; `UsageError` when there is none."""
        names = [pool.name for pool in self.cluster.pools]
        if name in names:
            return self.only(names.index(name))
        close = close_names(name, names, 1)
        guess = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"the cluster has no pool {name!r}", f"{guess}pools: {', '.join(names)}")


def load_model(path: str | os.PathLike[str], overrides: Overrides = ()) -> ModelInput:
    """Read a model file, another format that says a model, or a packaged example by name."""
    pairs = list(overrides)
    return _model(_prepare(_load(path, "model", pairs), "model", pairs))


def load_cluster(path: str | os.PathLike[str], overrides: Overrides = ()) -> ClusterInput:
    """Read a cluster file, or a packaged example by name."""
    pairs = list(overrides)
    return _cluster(_prepare(_load(path, "cluster", pairs), "cluster", pairs))


def model_from_dict(data: Mapping[str, Any], overrides: Overrides = ()) -> ModelInput:
    """Read a model from Python data with the structure of a model file, or of another format."""
    pairs = list(overrides)
    return _model(_prepare(_from_dict(data, "model", pairs), "model", pairs))


def cluster_from_dict(data: Mapping[str, Any], overrides: Overrides = ()) -> ClusterInput:
    """Read a cluster from Python data with the structure of a cluster file."""
    pairs = list(overrides)
    return _cluster(_prepare(_from_dict(data, "cluster", pairs), "cluster", pairs))


def read_document(source: str | os.PathLike[str] | Mapping[str, Any], kind: Kind) -> Document:
    """Return what a file, a packaged example or a dict says, unchecked."""
    inline = isinstance(source, Mapping)
    document = _from_dict(source, kind, ()) if inline else _load(source, kind)  # type: ignore[arg-type]
    expect(document, kind)
    return document


def model_of_document(document: Document) -> ModelInput:
    """Return a model from a document whose data may have been changed since it was read."""
    return _model(document)


def cluster_of_document(document: Document) -> ClusterInput:
    """Return a cluster from a document whose data may have been changed since it was read."""
    return _cluster(_with_nodes_set(document))


def check_spec(path: str | os.PathLike[str]) -> str:
    """Find out which kind of file this is, check it, and return a summary in a few lines."""
    document = _load(path, "model")
    if is_sweep(document.data):
        from planner.sweeping.spec import sweep_summary

        return sweep_summary(path)
    if kind_of(document) == "cluster":
        return _cluster_summary(_cluster(_prepare(document, "cluster", ())))
    return _model_summary(_model(_prepare(document, "model", ())))


def example_names(kind: Kind) -> list[str]:
    """Return the names of the packaged examples of a kind."""
    folder = _examples_folder()
    return sorted(p.stem for p in folder.glob(f"{kind}s/*.yaml")) if folder else []


def example_sweeps() -> dict[str, Path]:
    """Return the packaged sweep files by name."""
    folder = _examples_folder()
    return {p.stem: p for p in sorted(folder.glob("sweeps/*.yaml"))} if folder else {}


def _examples_folder() -> Path | None:
    """Return where the examples lie: inside the package (wheel) or at the top (checkout)."""
    here = Path(__file__).resolve().parent
    if (here / "examples").is_dir():
        return here / "examples"
    checkout = here.parent
    return checkout / "examples" if (checkout / "pyproject.toml").is_file() else None


def _load(path: str | os.PathLike[str], kind: Kind, overrides: Overrides = ()) -> Document:
    """Read a file, or the packaged example that a bare name means."""
    name = os.fspath(path)
    if not name:
        raise SpecError(Problem(f"the name of the {kind} file is empty", "name a file"))
    bare = name == os.path.basename(name) and not name.endswith((".yaml", ".yml", ".json"))
    folder = _examples_folder()
    other: Kind = "cluster" if kind == "model" else "model"
    if bare and folder and not Path(name).is_file():
        for found in (kind, other):
            if name in example_names(found):
                return load_yaml(folder / f"{found}s" / f"{name}.yaml")
        if not Path(name).exists():
            known = example_names(kind)
            close = close_names(name, [*known, *example_names(other)], 2)
            guess = f"did you mean {' or '.join(close)}? " if close else ""
            message = f"no file and no example called {name!r}"
            raise SpecError(Problem(message, f"{guess}{kind} examples: {', '.join(known)}"))
    name = _file_meant(name, kind)
    return _of_text(_text_of_file(name), name, overrides)


def _text_of_file(name: str) -> str:
    """Return the text of a file; a dump of a cluster may be larger than a specification."""
    try:
        large = os.path.getsize(name) > MAX_BYTES
    except (OSError, ValueError):
        large = False
    if large:
        text = read_dump(name)
        if find_format(text):
            return text
    return read_text(name)


def _file_meant(name: str, kind: Kind) -> str:
    """Return the file to read: a model may be named by the folder that holds its config.json."""
    if kind == "cluster":
        return name
    path = Path(name)
    if path.is_dir():
        return os.fspath(config_in_folder(path) or name)
    if error := mistaken_name(name):
        raise error
    if not path.exists() and not path.parent.is_dir() and re.fullmatch(_HUB_NAME, name):
        fix = f"a model of the Hugging Face Hub? Fetch its file: hf download {name} config.json"
        raise SpecError(Problem("no such file", fix, name))
    return name


_HUB_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.json)(?<!\.yaml)(?<!\.yml)"


def _of_text(text: str, file: str, overrides: Overrides) -> Document:
    """Return one of our files, or what a file of another format says in the words of ours."""
    if known := find_format(text):
        return _of_import(known.read(text, file, dict(overrides)), file)
    return parse_yaml(text, file)


def _of_import(imported: Imported, file: str = "") -> Document:
    marks = imported.marks
    return Document(imported.document, file, marks, marks, imported=imported)


def _from_dict(data: Mapping[str, Any], kind: Kind, overrides: Overrides) -> Document:
    """Return Python data as a document, whatever format it has the structure of."""
    if isinstance(data, Mapping) and not any(key in data for key in KEYS[kind]):
        text = text_of(data)
        if known := find_format(text):
            return _of_import(known.read(text, "", dict(overrides)))
    return Document(data)


def import_model(
    path: str | os.PathLike[str], *, name: str = "", as_type: str = ""
) -> tuple[Imported, ModelInput]:
    """Read a model of another format; return its fields with their origins, and it as an input.

    `name` replaces the model's name; `as_type` reads a Hugging Face configuration as one of
    another `model_type`. Raises `SpecError` for a file that is none.
    """
    file = _file_meant(os.fspath(path), "model")
    text = read_text(file)
    known = find_format(text)
    if known is None or known.kind != "model":
        what = f"is a {known.title}, no model" if known else "is of no format that says a model"
        titles = ", ".join(x.title for x in FORMATS if x.kind == "model")
        raise SpecError(Problem(what, f"formats: {titles}; `planner check-spec` reads ours", file))
    imported = read_as(text, file, as_type) if as_type else known.read(text, file, {})
    if name:
        imported = imported.changed(("model", "name"), name, "--name")
    return imported, _model(_of_import(imported, file))


def cluster_of_import(imported: Imported, file: str = "") -> ClusterInput:
    """Return a cluster that was imported as an input."""
    return _cluster(_of_import(imported, file))


def _import_notes(document: Document) -> tuple[str, ...]:
    """Return what a reader of another format assumed, a note each, and its other notes.

    What an option has set since is no assumption.
    """
    imported = document.imported
    if imported is None:
        return ()
    assumed = (
        f"assumed {path_text(o.path)} = {scalar(value_at(imported.document, o.path))} ({o.text})"
        for o in imported.origins
        if o.assumed and o.path not in document.overrides
    )
    return (*assumed, *(f"{imported.kind}: {note}" for note in imported.notes))


def _prepare(document: Document, kind: Kind, overrides: Overrides) -> Document:
    """Refuse files of another kind, then apply the overrides."""
    expect(document, kind)
    pairs = list(overrides)
    for section in ("fabric", "operations") if kind == "cluster" else ():
        if any(path.startswith(f"{section}.") for path, _ in pairs):
            document = dataclasses.replace(document, data={section: {}, **document.data})
    section = document.data.get("model")
    if any(path.startswith("model.details.") for path, _ in pairs) and isinstance(section, dict):
        filled = {**document.data, "model": {"details": {}, **section}}
        document = dataclasses.replace(document, data=filled)
    for path, value in pairs:
        document = set_path(document, path, str(value))
    return _with_nodes_set(document) if kind == "cluster" else document


def _sets_nodes(document: Document) -> bool:
    """Tell whether an option states a number of nodes."""
    return any(path[-1] in ("nodes", "free_nodes") for path in document.overrides)


def _with_nodes_set(document: Document) -> Document:
    """Return the document without the free devices of pools whose free nodes an option sets.

    The names of the nodes, of all beside `free_devices`, become those of the nodes in use.
    """
    changed: dict[int, Any] = {}
    for path in document.overrides:
        pools = document.data.get("pools")
        if path[:1] != ("pools",) or path[-1] != "free_nodes" or not isinstance(pools, list):
            continue
        index = path[1]
        if isinstance(index, int) and isinstance(pools[index], Mapping):
            gone = ("free_devices", "partial_nodes")
            changed[index] = {k: v for k, v in pools[index].items() if k not in gone}
    if not changed:
        return document
    pools = [changed.get(i, pool) for i, pool in enumerate(document.data["pools"])]
    return dataclasses.replace(document, data={**document.data, "pools": pools})


def _raise_faults(document: Document, faults: Iterable[Fault | None]) -> None:
    problems = [document.problem(f.path, f.message, f.fix) for f in faults if f is not None]
    if problems:
        raise SpecError(problems)


def _default_name(document: Document, fallback: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", Path(document.file).stem).strip("-._+")
    return plain[:64] or fallback


def _model(document: Document) -> ModelInput:
    spec = validate(ModelFile, document)
    _raise_faults(document, model_faults(spec))
    if spec.search:
        from planner.search_section import section_faults  # which needs the axes of the search

        _raise_faults(document, section_faults(spec.search))
    model, job = spec.model, spec.training
    shape = _shape(model, model.name or _default_name(document, "model"))
    training = TrainingJob(
        job.seq_len, job.global_batch, job.precisions[0], job.optimizer, job.tokens or 0.0
    )
    canonical = {
        "model": _canonical_model(shape, model.details),
        "training": {**dataclasses.asdict(training), "tokens": job.tokens},
    }
    return ModelInput(
        shape=shape,
        job=training,
        document=canonical,
        path=document.file,
        format=document.imported.format if document.imported else "a model file",
        notes=_import_notes(document),
        details=model.details,
        search=spec.search,
        listed=job.precisions if len(job.precisions) > 1 else (),
    )


def sizes_as_stated(data: Mapping[str, Any]) -> tuple[ModelShape, TrainingJob] | None:
    """Return the model and job of a document whose sizes need not go together.

    For rules, which say what a framework refuses of sizes that no plan can have. None where a
    field is missing or is no such value at all.
    """
    try:
        spec = validate(ModelFile, Document(data))
    except SpecError:
        return None
    job = spec.training
    shape = _shape(spec.model, spec.model.name or "model")
    return shape, TrainingJob(job.seq_len, job.global_batch, job.precisions[0], job.optimizer)


def _shape(model: ModelSpec, name: str) -> ModelShape:
    """Return the shape with every default filled in."""
    plain = {key: getattr(model, key) for key in _PLAIN_FIELDS}
    plain["name"] = name
    plain["kv_heads"] = model.kv_heads or model.heads
    plain["head_dim"] = model.head_dim or model.hidden // model.heads
    plain["ffn"] = model.ffn or 4 * model.hidden
    if mla := model.mla:
        plain |= {key: getattr(mla, key) for key in _MLA_FIELDS}
        plain["head_dim"] = mla.qk_nope + mla.qk_rope
    if moe := model.moe:
        width = moe.moe_ffn or plain["ffn"]
        shared = moe.shared_experts * width if moe.shared_ffn is None else moe.shared_ffn
        plain |= {key: getattr(moe, name) for key, name in _MOE_FIELDS.items()}
        plain |= {"expert_ffn": width, "shared_ffn": shared}
        plain["ffn"] = model.ffn or width
        plain["top_groups"] = moe.top_groups or moe.routing_groups
    return ModelShape(**plain)


_MLA_FIELDS = ("q_rank", "kv_rank", "qk_nope", "qk_rope", "v_head")
_MOE_FIELDS = {
    "n_experts": "experts", "top_k": "topk", "expert_ffn": "moe_ffn", "shared_ffn": "shared_ffn",
    "dense_layers": "dense_layers", "moe_every": "every", "capacity_factor": "capacity_factor",
    "imbalance": "imbalance", "n_groups": "routing_groups", "top_groups": "top_groups",
}  # fmt: skip
"""Fields of a shape by their name in `model.moe`."""
_PLAIN_FIELDS = tuple(
    f.name for f in dataclasses.fields(ModelShape) if f.name not in {*_MLA_FIELDS, *_MOE_FIELDS}
)


def _canonical_model(shape: ModelShape, details: DetailsSpec) -> dict[str, Any]:
    """Return the model as a model file would state it; only the sections that it uses."""
    out = {key: getattr(shape, key) for key in _PLAIN_FIELDS}
    # Named only where set: the identity of a plan does not change with what it does not use.
    if not shape.mtp_layers:
        del out["mtp_layers"]
    if shape.latent:
        del out["kv_heads"], out["head_dim"]
        out["mla"] = {key: getattr(shape, key) for key in _MLA_FIELDS}
    if shape.n_experts:
        out["moe"] = {name: getattr(shape, key) for key, name in _MOE_FIELDS.items()}
    if stated := details.stated():
        out["details"] = stated
    return out


def _cluster(document: Document) -> ClusterInput:
    spec = validate(ClusterFile, document)
    _raise_faults(document, cluster_faults(spec))
    catalogue = _catalogue()
    tiers = tuple(Tier(t.name, t.nodes, t.oversubscription, t.sharp) for t in spec.fabric.tiers)
    fabric = Fabric(tiers, spec.fabric.rail_optimized, spec.fabric.sharp)
    read = [_pool(given, i, fabric, catalogue, document) for i, given in enumerate(spec.pools)]
    pools = tuple(pool for pool, _, _ in read)
    _raise_faults(document, [name_fault(i, [p.name for p in pools]) for i in range(len(pools))])
    cluster = Cluster(spec.name or _default_name(document, "cluster"), pools, fabric)
    sources = tuple(source for _, _, source in read)
    canonical = _canonical_cluster(cluster, [accelerator for _, accelerator, _ in read], sources)
    for pool, given in zip(canonical["pools"], spec.pools, strict=True):
        if given.price_per_hour is not None:
            pool["price_per_hour"] = given.price_per_hour
    if stated := _canonical_operations(spec.operations):
        canonical["operations"] = stated
    return ClusterInput(
        cluster=cluster,
        document=canonical,
        path=document.file,
        sources=sources,
        operations=tuple(
            _operations(catalogue.operations, spec.operations, given.price_per_hour)
            for given in spec.pools
        ),
        notes=_import_notes(document),
        from_dump=document.imported is not None and not _sets_nodes(document),
    )


def _operations(
    defaults: Operations, given: OperationsSpec, price_per_hour: float | None
) -> Operations:
    """Return the defaults with what the file states in their place."""
    stated = {
        "power_overhead": given.power_overhead,
        "pue": given.pue,
        "device_mtbf_s": given.device_mtbf,
        "restart_s": given.restart,
        "checkpoint_bytes_per_s": given.checkpoint_bandwidth,
        "checkpoint_s": given.checkpoint_time,
        "price_per_device_hour": price_per_hour,
    }
    changed: dict[str, Any] = {key: value for key, value in stated.items() if value is not None}
    if given.checkpoint_bandwidth is not None:
        changed["bandwidth_is_per_device"] = False
    sources = {k: v for k, v in defaults.provenance.items() if k not in changed}
    return dataclasses.replace(defaults, **changed, provenance=sources)


def _canonical_operations(given: OperationsSpec) -> dict[str, Any]:
    """Return what the file states under `operations`, in base units."""
    stated = given.model_dump(exclude_none=True)
    for key in ("device_mtbf", "restart", "checkpoint_time"):
        if key in stated:
            stated[key] = units.exact_time(stated[key])
    if "checkpoint_bandwidth" in stated:
        stated["checkpoint_bandwidth"] = units.exact_bandwidth(stated["checkpoint_bandwidth"])
    return stated


def _pool(
    given: PoolSpec, index: int, fabric: Fabric, catalogue: "Catalogue", document: Document
) -> tuple[Pool, Any, PoolSource]:
    """Return one pool, its accelerator as the canonical document names it, and its source."""
    path: KeyPath = ("pools", index)
    platform = _platform(given, path, catalogue, document)
    accelerator, base_name = _accelerator(given, platform, path, catalogue, document)
    usual = platform.devices_per_node if platform else accelerator.devices_per_node
    whole = given.accelerators_per_node or usual
    nic, n_nics = _nics(given, platform, path, whole, base_name, catalogue, document)
    n_nodes, per_node = _free(given, whole, path, document)
    domain = given.scale_up_domain or default_domain(accelerator, given.nodes * whole, whole)
    _raise_faults(
        document,
        [
            domain_fault((*path, "scale_up_domain"), domain, given.nodes, whole),
            _sharp_fault(fabric, nic),
            _tier_inside_domain_fault(fabric, domain // whole),
        ],
    )
    scale_up = catalogue.link(accelerator.scale_up_link)
    network = _replaced_network(given, accelerator, scale_up, nic)
    pool = Pool(
        name=given.name or accelerator.name,
        accelerator=_summing(given, accelerator, path, document),
        n_nodes=n_nodes,
        devices_per_node=per_node,
        scale_up_domain=_free_domain(domain, whole, n_nodes, per_node),
        scale_up=_with_hop(scale_up, given.scale_up_latency),
        nics_per_node=max(1, n_nics * per_node // whole),
        nic=_with_hop(nic, given.nic_latency),
        memory_margin_bytes=given.memory_margin,
        n_summing_tiers=fabric.n_summing_tiers,
        host=_host(given, accelerator, whole, path, document),
    )
    _raise_faults(document, [_margin_fault(pool, path)])
    named = _canonical_accelerator(accelerator.name, given.accelerator, base_name)
    own_ports = given.nic is not None or given.nics_per_node is not None
    keys = ("nodes",) if given.free_nodes is None else ("nodes", "free_nodes")
    # A rack that grows with its nodes may outgrow the lowest tier, which then has to grow too.
    grows = given.scale_up_domain is None and domain < default_domain(
        accelerator, accelerator.scale_up_domain, whole
    )
    source = PoolSource(
        index=index,
        assumed=_assumed(pool, None if own_ports else platform),
        node_keys=() if given.free_devices or (grows and fabric.tiers) else keys,
        own_domain=given.scale_up_domain is not None,
        hosts=_hosts(given, n_nodes, per_node, path, document),
        host=_stated_host(given),
        network=network,
        announced=_announced(base_name, pool, catalogue),
    )
    return pool, named, source


_LATENCIES = ("ring_base_s", "ring_hop_s", "tree_base_s", "tree_hop_s")
"""Fields of a link that hold a latency for each protocol."""
_LL = PROTOCOLS.index("ll")


def _replaces_hop(link: Link, hop_s: float | None) -> bool:
    """Tell whether a file states another hop than the catalogue, whatever the unit."""
    return hop_s is not None and not math.isclose(hop_s, link.ring_hop_s[_LL], rel_tol=1e-9)


def _with_hop(link: Link, hop_s: float | None) -> Link:
    """Return a link whose hop takes `hop_s` with the fastest protocol; None: as it is.

    All its latencies change by the same factor: those of the other protocols and of a message,
    and the library's constants for sums in its switches.
    """
    if not _replaces_hop(link, hop_s):
        return link
    assert hop_s is not None
    ratio = hop_s / link.ring_hop_s[_LL]
    scaled = {key: tuple(x * ratio for x in getattr(link, key)) for key in _LATENCIES}
    gone = {*_LATENCIES, "p2p_latency_s"}
    changes: dict[str, Any] = {
        **scaled,
        "p2p_latency_s": link.p2p_latency_s * ratio,
        "latency_factor": link.latency_factor * ratio,
        "provenance": {k: v for k, v in link.provenance.items() if k not in gone},
    }
    return dataclasses.replace(link, **changes)


def _summing(given: PoolSpec, part: Accelerator, path: KeyPath, document: Document) -> Accelerator:
    """Return the accelerator with in-switch sums switched off where the pool says so."""
    rate = part.in_switch_all_reduce_bytes_per_s
    if given.sums_in_switch and not rate:
        message = f"no rate is known at which switches of {part.name} sum"
        fix = "state `in_switch_bandwidth` in a mapping under `accelerator`, or leave this key out"
        raise SpecError(document.problem((*path, "sums_in_switch"), message, fix))
    if given.sums_in_switch is not False or not rate:
        return part
    return dataclasses.replace(
        part,
        in_switch_all_reduce_bytes_per_s=0.0,
        in_switch_min_ranks=0,
        provenance={k: v for k, v in part.provenance.items() if not k.startswith("in_switch")},
    )


def _replaced_network(
    given: PoolSpec, part: Accelerator, scale_up: Link, nic: Link
) -> tuple[tuple[str, str | bool], ...]:
    """Return the latencies and the switch that the file replaces, as it would state them."""
    found: list[tuple[str, str | bool]] = []
    for key, hop_s, link in (
        ("scale_up_latency", given.scale_up_latency, scale_up),
        ("nic_latency", given.nic_latency, nic),
    ):
        if _replaces_hop(link, hop_s):
            found.append((key, units.exact_time(hop_s or 0.0)))
    if given.sums_in_switch is False and part.in_switch_all_reduce_bytes_per_s:
        found.append(("sums_in_switch", False))
    return tuple(found)


def _announced(base_name: str, pool: Pool, catalogue: "Catalogue") -> tuple[str, ...]:
    """Return the catalogue names of the parts of a pool that nobody has measured."""
    parts = (catalogue.accelerator(base_name), pool.scale_up, pool.nic)
    return tuple(part.name for part in parts if part.status == "assumed")


HOST_KEYS = ("host_link", "host_memory", "host_memory_bandwidth")
"""What a cluster file may say about the host of a node."""


def _host(
    given: PoolSpec, part: Accelerator, per_node: int, path: KeyPath, document: Document
) -> Host | None:
    """Return a device's share of its host: what the file says, else the usual platform's."""
    usual = part.host
    stated = [getattr(given, key) for key in HOST_KEYS]
    if not any(stated):
        return usual
    missing = [key for key, value in zip(HOST_KEYS, stated, strict=True) if not value]
    if missing and usual is None:
        message = f"the host of {part.name} is not in the catalogue, and {missing[0]} is missing"
        key = next(key for key, value in zip(HOST_KEYS, stated, strict=True) if value)
        fix = f"give all of {', '.join(HOST_KEYS)}, or none"
        raise SpecError(document.problem((*path, key), message, fix))
    link, memory, bandwidth = stated
    base = usual or Host(0.0, 0.0, 0.0)
    return Host(
        link or base.link_bytes_per_s,
        memory / per_node if memory else base.memory_bytes,
        bandwidth / per_node if bandwidth else base.memory_bytes_per_s,
    )


def _platform(
    given: PoolSpec, path: KeyPath, catalogue: "Catalogue", document: Document
) -> Platform | None:
    if given.instance is None:
        return None
    key = (*path, "instance")
    return _part(catalogue.platform, given.instance, "instance", document, key)


def _free(given: PoolSpec, per_node: int, path: KeyPath, document: Document) -> tuple[int, int]:
    """Return the nodes that plans may use, and how many devices of each."""
    free = given.free_devices
    if free is None:
        return given.free_nodes or given.nodes, per_node
    key = (*path, "free_devices")
    for i, n in enumerate(free):
        if n > per_node:
            message = f"{n} free devices in a node of {per_node}"
            raise SpecError(document.problem((*key, i), message, f"give at most {per_node}"))
    # Most devices in use; of equal totals the fuller nodes, which have fewer neighbours.
    shares = range(1, per_node + 1) if given.partial_nodes else (per_node,)
    total, share = max((n * sum(x >= n for x in free), n) for n in shares)
    if not total:
        fix = "wait for one, or set `partial_nodes: true`" if any(free) else "wait for one"
        raise SpecError(document.problem(key, "no node is free", fix))
    return total // share, share


def _hosts(
    given: PoolSpec, n_nodes: int, per_node: int, path: KeyPath, document: Document
) -> tuple[str, ...]:
    """Return the names of the nodes that plans use."""
    if given.hosts is None:
        return ()
    names, free = expand_hosts(given.hosts), given.free_devices
    n_named = n_nodes if free is None else len(free)
    if len(names) != n_named:
        # With --set another number is meant: the first of the list, or nodes without known names.
        if any((*path, key) in document.overrides for key in ("nodes", "free_nodes")):
            return names[:n_nodes] if len(names) > n_nodes else ()
        which = "nodes that plans use" if free is None else "numbers in `free_devices`"
        message = f"{len(names)} hosts for {n_named} {which}"
        raise SpecError(document.problem((*path, "hosts"), message, "name every one of them once"))
    if free is None:
        return names
    return tuple(name for name, n in zip(names, free, strict=True) if n >= per_node)


def _free_domain(domain: int, whole: int, n_nodes: int, per_node: int) -> int:
    """Return the devices of a scale-up domain that a plan may use.

    Free nodes are taken to fill racks from the first on.
    """
    if domain <= whole:
        return min(domain, per_node)
    return min(domain // whole, n_nodes) * per_node


def _tier_inside_domain_fault(fabric: Fabric, domain_nodes: int) -> Fault | None:
    """Refuse a tier smaller than a rack: traffic inside a scale-up domain enters no tier."""
    if not fabric.tiers or fabric.tiers[0].n_nodes >= domain_nodes:
        return None
    tier = fabric.tiers[0]
    message = f"{tier.n_nodes} nodes of tier {tier.name!r} lie in a domain of {domain_nodes} nodes"
    fix = f"give at least {domain_nodes}, or leave the tier out"
    return Fault(("fabric", "tiers", 0, "nodes"), message, fix)


def _sharp_fault(fabric: Fabric, nic: Link) -> Fault | None:
    if not fabric.n_summing_tiers or nic.sums_in_switch:
        return None
    path: KeyPath = ("fabric", "sharp") if fabric.sharp else ("fabric", "tiers", 0, "sharp")
    message = f"switches of a {nic.name} network do not sum all-reduces"
    return Fault(path, message, "set it for InfiniBand from HDR on, such as ib-ndr-400")


def default_domain(part: Accelerator, n_devices: int, per_node: int) -> int:
    """Return the devices of a scale-up domain: the catalogue's, beyond a node only in racks."""
    rack = part.scale_up_domain > part.devices_per_node and part.scale_up_domain % per_node == 0
    return min(part.scale_up_domain, n_devices if rack else per_node)


def _catalogue() -> "Catalogue":
    from hardware.catalogue import CatalogueError, load_catalogue  # only clusters need its files

    try:
        return load_catalogue()
    except CatalogueError as error:
        raise CatalogError(str(error)) from error


def _accelerator(
    given: PoolSpec,
    platform: Platform | None,
    pool_path: KeyPath,
    catalogue: "Catalogue",
    document: Document,
) -> tuple[Accelerator, str]:
    """Return the accelerator with the figures that the file replaces, and its catalogue name."""
    path: KeyPath = (*pool_path, "accelerator")
    inline = platform.accelerator if platform else given.accelerator
    if inline is None or isinstance(inline, str):  # None was refused before
        found = _part(catalogue.accelerator, inline or "", "accelerator", document, path)
        return found, found.name
    base = _part(catalogue.accelerator, inline.like, "accelerator", document, (*path, "like"))
    replaced: dict[str, float] = {}
    if inline.memory:
        replaced["memory_bytes"] = inline.memory
    if inline.hbm_bandwidth:
        replaced["hbm_bytes_per_s"] = inline.hbm_bandwidth
    if inline.scale_up_bandwidth:
        # What collectives reach moves with the data-sheet figure.
        ratio = inline.scale_up_bandwidth / base.scale_up_bytes_per_s
        for name in _SCALE_UP_FIGURES:
            replaced[name] = getattr(base, name) * ratio
    if inline.in_switch_bandwidth:
        replaced["in_switch_all_reduce_bytes_per_s"] = inline.in_switch_bandwidth
        replaced["in_switch_min_ranks"] = base.in_switch_min_ranks or IN_SWITCH_MIN_RANKS
    if inline.power:
        replaced["tdp_w"] = inline.power
    stated = {*replaced, *(f"peak_flops_per_s.{precision}" for precision in inline.peaks)}
    changes: dict[str, Any] = {
        **replaced,
        "name": inline.name or f"{base.name}-custom",
        "peak_flops_per_s": {**base.peak_flops_per_s, **inline.peaks},
        "provenance": {k: v for k, v in base.provenance.items() if k not in stated},
    }
    return dataclasses.replace(base, **changes), base.name


def _nics(
    given: PoolSpec,
    platform: Platform | None,
    pool_path: KeyPath,
    per_node: int,
    base_name: str,
    catalogue: "Catalogue",
    document: Document,
) -> tuple[Link, int]:
    """Return the network port and the number of them in a node.

    Without `nic:` both come from the instance, else from the usual platform of the accelerator;
    otherwise the number defaults to one per device.
    """
    path: KeyPath = (*pool_path, "nic")
    usual = catalogue.typical_nics.get(base_name)
    if platform and given.nic is None:
        share = per_node / platform.devices_per_node
        name, n_usual = platform.nic, max(1, round(platform.nics_per_node * share))
    elif given.nic is None and usual is None:
        message = f"is missing, and no usual network port is known for {base_name}"
        raise SpecError(document.problem(path, message, "add `nic:`, such as ib-ndr-400"))
    elif given.nic is None and usual is not None:
        name, n_usual = usual.link, max(1, round(usual.n_per_device * per_node))
    else:
        name, n_usual = given.nic or "", per_node
    nic = _part(catalogue.link, name, "link", document, path)
    if nic.kind != "scale-out":
        message = f"{nic.name} is a link inside a node, not a network port"
        raise SpecError(document.problem(path, message, "name a link such as ib-ndr-400"))
    if given.nic_speed and given.nic_speed != nic.bytes_per_s:
        sources = {k: v for k, v in nic.provenance.items() if k != "bytes_per_s"}
        nic = dataclasses.replace(nic, bytes_per_s=given.nic_speed, provenance=sources)
    return nic, given.nics_per_node or n_usual


def _part(
    find: Callable[[str], Part], name: str, noun: str, document: Document, path: KeyPath
) -> Part:
    """Look a part up in the catalogue; an unknown name is a problem of the file."""
    from hardware.catalogue import UnknownPartError

    try:
        return find(name)
    except UnknownPartError as error:
        close = " or ".join(error.suggestions)
        guess = f"did you mean {close}? " if close else ""
        fix = f"{guess}`planner catalog list` shows all names"
        message = f"unknown {noun} {units.show(name)}"
        raise SpecError(document.problem(path, message, fix)) from None


def _margin_fault(pool: Pool, path: KeyPath) -> Fault | None:
    if pool.usable_bytes > 0:
        return None
    margin, memory = pool.memory_margin_bytes, pool.accelerator.memory_bytes
    message = f"{units.format_size(margin)} leave nothing of {units.format_size(memory)} of memory"
    return Fault((*path, "memory_margin"), message, "lower it; the default is 4 GiB")


def _canonical_cluster(
    cluster: Cluster, accelerators: Sequence[Any], sources: Sequence[PoolSource]
) -> dict[str, Any]:
    fabric = cluster.fabric
    return {
        "name": cluster.name,
        "pools": [
            {
                "name": pool.name,
                "accelerator": accelerator,
                "nodes": pool.n_nodes,
                "accelerators_per_node": pool.devices_per_node,
                "scale_up_domain": pool.scale_up_domain,
                "nics_per_node": pool.nics_per_node,
                "nic": pool.nic.name,
                "nic_speed": units.exact_bandwidth(pool.nic.bytes_per_s),
                "memory_margin": units.exact_size(pool.memory_margin_bytes),
            }
            | dict(source.network)
            | dict(source.host)
            | ({"hosts": compress_hosts(source.hosts)} if source.hosts else {})
            for pool, accelerator, source in zip(cluster.pools, accelerators, sources, strict=True)
        ],
        "fabric": {
            "tiers": [
                {"name": t.name, "nodes": t.n_nodes, "oversubscription": t.oversubscription}
                | ({"sharp": True} if t.sharp else {})
                for t in fabric.tiers
            ],
            "rail_optimized": fabric.rail_optimized,
        }
        # Named only where set: the identity of a plan does not change with what it does not use.
        | ({"sharp": True} if fabric.sharp else {}),
    }


def _stated_host(given: PoolSpec) -> tuple[tuple[str, str], ...]:
    """Return what the file says about the host, as it would be stated there."""
    found = []
    for key in HOST_KEYS:
        value = getattr(given, key)
        exact = units.exact_size if key == "host_memory" else units.exact_bandwidth
        found += [(key, exact(value))] if value else []
    return tuple(found)


def _canonical_accelerator(name: str, given: str | AcceleratorSpec | None, base_name: str) -> Any:
    if not isinstance(given, AcceleratorSpec):
        return base_name
    exact: dict[str, Any] = {"like": base_name, "name": name}
    if given.memory:
        exact["memory"] = units.exact_size(given.memory)
    for key in ("hbm_bandwidth", "scale_up_bandwidth", "in_switch_bandwidth"):
        if value := getattr(given, key):
            exact[key] = units.exact_bandwidth(value)
    if given.power:
        exact["power"] = f"{given.power!r} W"
    if given.peaks:
        exact["peaks"] = {k: units.exact_rate(given.peaks[k]) for k in sorted(given.peaks)}
    return exact


def _assumed(pool: Pool, platform: Platform | None) -> tuple[str, ...]:
    """Name the figures in use that the catalogue marks as assumed; of announced parts all at once.

    `platform` is where the ports come from, if from an instance.
    """
    parts: list[tuple[str, Mapping[str, Provenance]]] = []
    for part in (pool.accelerator, pool.scale_up, pool.nic):
        stated = part.provenance
        if part.status == "assumed":
            stated = {EVERY_FIGURE: Provenance("", "", "assumed")}
        parts.append((part.name, stated))
    if platform:
        ports = {k: v for k, v in platform.provenance.items() if k == "nics_per_node"}
        parts.append((platform.name, ports))
    return tuple(
        f"{part}.{figure}"
        for part, provenance in parts
        for figure, origin in provenance.items()
        # Figures of the host are named where they count: with plans that offload to it.
        if origin.status == "assumed" and not figure.startswith("host.")
    )


def _model_summary(given: ModelInput) -> str:
    shape, job = given.shape, given.job
    run = f", {units.format_count(job.tokens)} tokens in all" if job.tokens else ""
    notes = "".join(f"\n  {note}" for note in given.notes)
    return (
        f"{given.path}: {given.format}, no problems found\n"
        f"  {shape.name}: {shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads"
        f" ({shape.kv_heads} kv) of {shape.head_dim}, ffn {shape.ffn}"
        f" {'gated' if shape.gated else 'plain'}, vocab {shape.vocab}"
        f" {'tied' if shape.tied else 'untied'}\n"
        f"{_expert_summary(given)}"
        f"  seq {job.seq_len}, global batch {job.global_batch}"
        f" ({units.format_count(job.tokens_per_step)} tokens per step),"
        f" {' or '.join(given.precisions)},"
        f" {job.optimizer}{run}{notes}"
    )


def _expert_summary(given: ModelInput) -> str:
    """Return a line each on experts, latent attention and multi-token prediction, where used."""
    shape, text = given.shape, ""
    if shape.n_experts:
        total, active = (
            f"{count(shape, given.job.seq_len) / 1e9:.2f} B"
            for count in (total_params, active_params)
        )
        text += (
            f"  experts: {shape.n_experts} of width {shape.expert_ffn}, {shape.top_k} a token,"
            f" in {shape.n_expert_layers} layers; {total} parameters, {active} active\n"
        )
    if shape.latent:
        text += (
            f"  latent attention: ranks {shape.q_rank} and {shape.kv_rank}, heads of"
            f" {shape.qk_nope} + {shape.qk_rope}, values of {shape.v_head}\n"
        )
    if shape.mtp_layers:
        text += f"  multi-token prediction: {shape.mtp_layers} module(s)\n"
    return text


def _cluster_summary(given: ClusterInput) -> str:
    cluster = given.cluster
    tiers = ", ".join(
        f"{t.name} of {t.n_nodes} nodes ({t.oversubscription:g}:1 above)"
        for t in cluster.fabric.tiers
    )
    rails = "rail-optimized" if cluster.fabric.rail_optimized else "not rail-optimized"
    what = "a dump of a cluster" if given.from_dump else "a cluster file"
    lines = [f"{given.path}: {what}, no problems found"]
    for pool in cluster.pools:
        lines += _pool_summary(cluster.name if len(cluster.pools) == 1 else pool.name, pool)
    sums = f"; the lowest {n} level(s) sum" if (n := cluster.fabric.n_summing_tiers) else ""
    lines.append(f"  fabric {rails}{sums}; tiers: {tiers or 'one non-blocking switch'}")
    if replaced := _replaced_figures(given):
        lines.append("  replaced figures: " + ", ".join(replaced))
    if given.announced:
        names = ", ".join(given.announced)
        lines.append(f"  announced, not measured: {names}")
    if given.assumed:
        lines.append("  assumed figures: " + ", ".join(given.assumed))
    lines += [f"  {note}" for note in given.notes]
    return "\n".join(lines)


def _replaced_figures(given: ClusterInput) -> list[str]:
    """Return the catalogue figures that the file replaces, with their new values."""
    found = []
    for pool, source in zip(given.document["pools"], given.sources, strict=True):
        figures = dict(source.network)
        if isinstance(pool["accelerator"], dict):
            own = {k: v for k, v in pool["accelerator"].items() if k not in ("like", "name")}
            peaks = own.pop("peaks", {})
            figures = {**own, **{f"peaks.{k}": v for k, v in peaks.items()}, **figures}
        shown = {k: units.show(v) if isinstance(v, bool) else v for k, v in figures.items()}
        found += [f"{pool['name']}.{key} {value}" for key, value in shown.items()]
    return found


def _pool_summary(name: str, pool: Pool) -> list[str]:
    nodes = "1 node" if pool.n_nodes == 1 else f"{pool.n_nodes} nodes"
    return [
        f"  {name}: {nodes} x {pool.devices_per_node} {pool.accelerator.name}"
        f" = {pool.n_devices} devices, {units.format_gib(pool.usable_bytes)} GiB usable of"
        f" {units.format_gib(pool.accelerator.memory_bytes)} GiB each",
        f"  scale-up {pool.scale_up.name}, domain of {pool.scale_up_domain}, "
        f"{units.format_bandwidth(pool.accelerator.scale_up_bytes_per_s)} per device; "
        f"{pool.nics_per_node} x {pool.nic.name} per node, "
        f"{units.format_link_speed(pool.nic.bytes_per_s)} each",
    ]
