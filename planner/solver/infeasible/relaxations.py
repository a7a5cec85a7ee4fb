"""When nothing fits: the smallest changes after which a plan exists, each found by a search.

Tried one at a time: a restriction dropped or moved to its nearest value, any framework, optimizer
states or stored activations on the host, a smaller margin, narrower gradients, a fused attention
kernel, another batch, shorter sequences, more nodes. When no single change helps, restrictions are
dropped in twos and all at once, with and without one of the other changes. Answers are ordered by
what they touch, then by how far they move it.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from costmodels.precision import SIXTEEN_BIT
from costmodels.tuning.records import DPO, LORA, PRETRAIN, QLORA, SFT
from hardware.catalogue import load_catalogue
from hardware.parts import Pool
from hardware.torus import slice_shape
from planner.errors import SearchError, SpecError
from planner.solver.answer.result import Relaxation
from planner.solver.options import SolveCommand, SolveOptions
from planner.solver.recipes import pinned_to
from planner.specs.cluster.words import cluster_words
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict, load_cluster, model_from_dict
from planner.specs.search.axis_values import NUMERICS
from planner.specs.sections.tuning import TUNING_FRAMEWORKS
from searches.executors.executor import SerialExecutor
from searches.feasibility import StoppedError, any_fits, largest_true, least_true, states_can_fit
from searches.frameworks.carried import foreign_rules
from searches.frameworks.registry import ANY, framework_names, framework_rules
from searches.options import TEXT_AXES, usual_most_mbs
from searches.pricing.candidates import Candidate
from searches.rules import Context
from searches.search import search
from searches.space.shape_space import divisors

KINDS = ("value", "restriction", "software", "numerics", "job", "hardware")
"""What a change touches, from the least to the most; `value` is that of a pin."""
HOST_OFFERS = (
    ("optimizer_offload", "", "optimizer states"),
    ("activation_offload", "activation_offload_layers", "stored activations"),
)
"""Axes that put something on the host, closed unless named: the switch, the axis that says how
much where there is one, and what it moves."""
MAX_NODE_DOUBLINGS = 12
NODE_COUNTS_TRIED = 32
"""Node counts tried one after the other before they are doubled."""
BATCHES_TRIED = 12
MAX_DOUBLE_CHANGES = 3
"""Double changes named; there may be many."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A change in words, and the question after it."""

    change: str
    model: ModelInput
    cluster: ClusterInput
    options: SolveOptions
    fields: Mapping[str, object] = field(default_factory=dict)
    """Changed fields of the two files, by path."""
    kind: str = "restriction"
    factor: float = 1.0
    """By how much the value moves: the larger over the smaller."""
    stop: Callable[[], bool] | None = None
    """Ends the search for changes."""
    words: str = ""
    """The cluster in words, where it is another one."""


def find_relaxations(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    closest: Candidate | None,
    command: SolveCommand,
    stop: Callable[[], bool] | None = None,
) -> tuple[Relaxation, ...]:
    """Return the changes that make the job fit, those that change least first.

    `closest` is the plan that misses the memory by least, if memory is what is missing. Raises
    `searches.feasibility.StoppedError` once `stop` says so.
    """
    start = Attempt("", model, cluster, options, stop=stop)
    if _is_foreign(start):
        start = _priced_alone(start)
        if _fits(start):
            return (_relaxation(start, command),)
    named = dict.fromkeys((*options.pins, *options.only, *options.at_most))
    axes = tuple(axis for axis in named if axis not in NUMERICS)
    results = [a for a in _small_changes(start, axes, closest) if _fits(a)]
    results += [a for a in (_more_nodes(start), _other_card(start, closest, command)) if a]
    for group in () if results else _double_changes(start, axes, closest):
        results = list(itertools.islice(filter(_fits, group), MAX_DOUBLE_CHANGES))
        if results:
            break
    if not results and axes:
        more = _more_nodes(_opened(start, axes))
        results += [more] if more else []
    results.sort(key=lambda a: (KINDS.index(a.kind), abs(math.log2(a.factor))))
    return tuple(_relaxation(attempt, command) for attempt in results)


def _context(attempt: Attempt) -> Context:
    from planner.solver.problem import make_problem

    problem = make_problem(attempt.model, attempt.cluster, attempt.options)
    return Context(problem, attempt.options.search_options(problem), problem.pool.n_devices)


def _fits(attempt: Attempt) -> bool:
    return any_fits(_context(attempt), attempt.stop)


def _relaxation(attempt: Attempt, command: SolveCommand) -> Relaxation:
    """Return the change with its best plan and its command."""
    outcome = search(_context(attempt), SerialExecutor(), attempt.stop)
    if outcome.stopped:
        raise StoppedError
    best = outcome.finalists[0]
    return Relaxation(
        attempt.change,
        attempt.kind,
        attempt.factor,
        (replace(command, cluster=attempt.words) if attempt.words else command).text(
            attempt.options, attempt.fields
        ),
        best.layout,
        best.step_s,
    )


def _ratio(new: float, old: float) -> float:
    return max(new, old) / min(new, old) if min(new, old) > 0 else 1.0


def _joined(start: Attempt, change: str) -> str:
    return f"{start.change}, {change}" if start.change else change


def _of_cluster(
    start: Attempt, change: str, path: str, value: object, kind: str, factor: float = 1.0
) -> Attempt:
    """Change a field of the only pool; its place in the user's file may be another."""
    changed = cluster_from_dict(start.cluster.document, [(path, value)])
    in_file = f"pools.{start.cluster.sources[0].index}.{path.removeprefix('pools.0.')}"
    return replace(
        start,
        change=_joined(start, change),
        cluster=changed,
        kind=kind,
        factor=factor,
        fields={**start.fields, in_file: value},
    )


def _of_model(
    start: Attempt, change: str, path: str, value: object, kind: str, factor: float = 1.0
) -> Attempt:
    changed = model_from_dict(start.model.document, [(path, value)])
    return replace(
        start,
        change=_joined(start, change),
        model=changed,
        kind=kind,
        factor=factor,
        fields={**start.fields, path: value},
    )


def _of_recipe(start: Attempt, change: str, axis: str, word: str) -> Attempt:
    """Change the numbers: their pin where there is one, which wins over the file."""
    result = _of_model(start, change, f"training.{axis}", word, "numerics")
    if axis not in start.options.pins:
        return result
    return replace(result, options=pinned_to(start.options, {axis: word}), fields=start.fields)


def _opened(start: Attempt, axes: tuple[str, ...]) -> Attempt:
    """Return the question without any restriction on some axes."""
    options = start.options
    freer = replace(
        options,
        pins={a: v for a, v in options.pins.items() if a not in axes},
        only={a: v for a, v in options.only.items() if a not in axes},
        at_most={a: v for a, v in options.at_most.items() if a not in axes},
    )
    names = " and ".join((", ".join(axes[:-1]), axes[-1])) if len(axes) > 1 else axes[0]
    return replace(start, change=f"leave {names} open", options=freer)


def _small_changes(
    start: Attempt, axes: tuple[str, ...], closest: Candidate | None
) -> Iterator[Attempt]:
    """Yield the single changes, more devices apart."""
    for axis in axes:
        nearest = next((a for a in _other_values(start, axis) if _fits(a)), None)
        if nearest:
            yield nearest
        yield _opened(start, (axis,))
    yield from _file_changes(start, closest)


def _other_values(start: Attempt, axis: str) -> Iterator[Attempt]:
    """Yield other values of one pinned axis whose value trades memory, the nearest first."""
    options = start.options
    if axis not in options.pins:
        return
    old = options.pins[axis]
    pins = {a: v for a, v in options.pins.items() if a != axis}
    if axis == "mbs":
        job = start.model.job
        largest = max(old, usual_most_mbs(job.seq_len))
        sizes = [d for d in divisors(job.global_batch) if d <= largest]
        for value in sorted((d for d in sizes if d != old), key=lambda d: (_ratio(d, old), d)):
            moved = replace(options, pins={**pins, "mbs": value})
            change = f"mbs {value} instead of {old}"
            yield replace(
                start, change=change, options=moved, kind="value", factor=_ratio(value, old)
            )
    if axis == "recompute_layers":
        for value in range(old + 1, start.model.shape.layers + 1):
            moved = replace(options, pins={**pins, axis: value})
            change = f"recompute {value} layers of every virtual stage instead of {old}"
            yield replace(
                start, change=change, options=moved, kind="value", factor=_ratio(value, old)
            )
    if axis == "recompute" and "recompute_layers" not in options.pins:
        full = TEXT_AXES["recompute"].index("full")
        for value in range(1, start.model.shape.layers + 1) if old != full else ():
            moved = replace(options, pins={**pins, axis: full, "recompute_layers": value})
            text = f"recompute {value} layer{'s' if value > 1 else ''} of every virtual stage"
            change = f"{text} instead of {TEXT_AXES['recompute'][old]}"
            yield replace(start, change=change, options=moved, kind="value")


def _file_changes(start: Attempt, closest: Candidate | None) -> Iterator[Attempt]:
    """Yield the single changes of software, numbers and job."""
    options, job, shape = start.options, start.model.job, start.model.shape
    pool = start.cluster.cluster.pools[0]
    if options.framework not in ("default", "any"):
        freer = replace(options, framework="default", stack=options.stack_name)
        change = _joined(start, "any framework")
        yield replace(start, change=change, options=freer, kind="software")
    named = {**options.only, **{axis: {value} for axis, value in options.pins.items()}}
    for axis, amount, what in HOST_OFFERS if pool.host is not None else ():
        if 1 in named.get(axis, ()) or amount in named:
            continue
        pins = {other: value for other, value in options.pins.items() if other != axis}
        wider = replace(options, pins=pins, only={**options.only, axis: frozenset({0, 1})})
        change = _joined(start, f"{what} on the host")
        yield replace(start, change=change, options=wider, kind="software")
    if closest and closest.peak_bytes <= pool.accelerator.memory_bytes:
        # What the closest plan leaves free, rounded down to a tenth of a GiB.
        free = int((pool.accelerator.memory_bytes - closest.peak_bytes) / 2**30 * 10) / 10
        factor = _ratio(free * 2**30, pool.memory_margin_bytes)
        change, value = f"a memory margin of {free} GiB", f"{free} GiB"
        yield _of_cluster(start, change, "pools.0.memory_margin", value, "software", factor)
    if not shape.flash_attention:
        change = "a fused attention kernel"
        if set(pool.accelerator.efficiency.attention_frac) - {"unfused"}:
            yield _of_model(start, change, "model.flash_attention", True, "software")
    if job.precision in ("bf16", "fp16"):
        value = f"{job.precision}-grads"
        change = f"gradients in {job.precision}"
        yield _of_recipe(start, change, "precision", value)
    elif job.precision in SIXTEEN_BIT and job.grad_dtype != "bf16":
        yield _of_recipe(start, "gradients in bf16", "grad_dtype", "bf16")
    yield from _lighter_tasks(start)
    yield from _batches(start)
    for divisor in (2, 4, 8):
        tokens = job.seq_len // divisor
        if job.seq_len % divisor == 0 and not start.model.shape.diffusion:
            change = f"sequences of {tokens} tokens"
            yield _of_model(start, change, "training.seq_len", tokens, "job", divisor)


def _is_foreign(start: Attempt) -> bool:
    """Tell whether no framework that plans are written for runs the job, whatever the layout."""
    is_open = start.options.framework == ANY
    return not is_open and bool(foreign_rules(framework_names(), _context(start).problem))


def _priced_alone(start: Attempt) -> Attempt:
    """Return the question for plans that no framework runs, at the prices of the same stack."""
    options = replace(start.options, framework=ANY, stack=start.options.stack_name)
    change = "prices without launch files (framework any)"
    return replace(start, change=change, options=options, kind="software")


def _lighter_tasks(start: Attempt) -> Iterator[Attempt]:
    """Yield adapters in place of all weights, and quantized weights beside adapters.

    For the framework that trains both where another was chosen.
    """
    job = start.model.job
    changes = {SFT: (LORA, QLORA), DPO: (LORA, QLORA), LORA: (QLORA,)}.get(job.task, ())
    for task in changes:
        beside = "NF4 weights" if task == QLORA else "frozen weights"
        fields: dict[str, object] = {"training.task": task}
        if job.task == DPO:
            fields["training.reference"] = "memory" if job.has_reference else "precomputed"
        base = {"training.lora.base": "nf4" if task == QLORA else "bf16"}  # as by default
        attempt = replace(
            start,
            change=_joined(start, f"adapters beside {beside} (task {task})"),
            model=model_from_dict(start.model.document, {**fields, **base}.items()),
            kind="numerics" if job.task == LORA else "job",
            fields={**start.fields, **fields},
        )
        own = framework_rules(start.options.framework) if _is_one(start.options) else None
        if own is None or "nf4" not in own.adapter_bases:
            freer = replace(start.options, framework=TUNING_FRAMEWORKS[True], stack="")
            attempt = replace(attempt, options=freer)
        yield attempt


def _is_one(options: SolveOptions) -> bool:
    """Tell whether the search is for one framework, not for the usual ones or for any."""
    return options.framework not in ("default", "any")


def _other_card(
    start: Attempt, closest: Candidate | None, command: SolveCommand
) -> Attempt | None:
    """Return as many devices of the smallest other part that fits; None where there is none.

    For fine-tuning on a cluster in words. Parts of the same vendor that are sold, whose matrix
    products are at least half as fast.
    """
    words, pool = cluster_words(command.cluster), start.cluster.cluster.pools[0]
    if words is None or closest is None or start.model.job.task == PRETRAIN or pool.n_nodes > 1:
        return None
    for part in _larger_parts(pool, closest.peak_bytes):
        named = f"{pool.n_devices}x{part}"
        try:
            attempt = replace(
                start,
                change=_joined(start, f"{named} in place of {command.cluster}"),
                cluster=load_cluster(named),
                kind="hardware",
                words=named,
            )
            if _fits(attempt):
                return attempt
        except (SpecError, SearchError):  # a part that does not run such jobs
            continue
    return None


def _larger_parts(pool: Pool, least_bytes: float) -> list[str]:
    """Return parts that may hold so much, the smallest first, by name."""
    own = pool.accelerator
    half = own.peak_flops_per_s.get("bf16", 0.0) / 2.0
    parts = [
        part
        for part in load_catalogue().accelerators.values()
        if part.status == "confirmed"
        and part.vendor == own.vendor
        and part.memory_bytes > max(least_bytes, own.memory_bytes)
        and part.devices_per_node >= pool.n_devices
        and part.peak_flops_per_s.get("bf16", 0.0) >= half
    ]
    return [part.name for part in sorted(parts, key=lambda x: (x.memory_bytes, x.name))]


def _batches(start: Attempt) -> Iterator[Attempt]:
    """Yield the nearest global batch that fits, of those that share factors with the devices."""
    n, old = start.cluster.cluster.pools[0].n_devices, start.model.job.global_batch
    near = {old // d * d for d in divisors(n)} | {-(-old // d) * d for d in divisors(n)}
    near |= {old // 2, 2 * old}
    ordered = sorted(near - {0, old}, key=lambda b: (_ratio(b, old), b))
    for batch in ordered[:BATCHES_TRIED]:
        tokens = start.model.job.tokens
        if tokens and batch * start.model.job.seq_len > tokens:
            continue
        change = f"a global batch of {batch} sequences"
        attempt = _of_model(
            start, change, "training.global_batch", batch, "job", _ratio(batch, old)
        )
        if _fits(attempt):
            yield attempt
            return


def _double_changes(
    start: Attempt, axes: tuple[str, ...], closest: Candidate | None
) -> Iterator[list[Attempt]]:
    """Yield groups of double changes: restrictions only, those and one thing more, two things."""
    if len(axes) > 1:
        yield [_opened(start, pair) for pair in itertools.combinations(axes, 2)]
    if len(axes) > 2:
        yield [_opened(start, axes)]
    bases = [_opened(start, axes)] if axes else []
    bases += [a for a in _file_changes(start, closest) if a.kind == "numerics"]
    for base in bases:
        further = _file_changes(base, None)
        yield [a for a in further if a.options != base.options or a.fields != base.fields]


def _is_replicated(start: Attempt) -> bool:
    """Tell whether ranks differ in their data alone, as quantized weights have it (`CUT-...`)."""
    tuning = start.model.job.tuning
    return tuning is not None and tuning.storage.is_quantized


def _more_nodes(start: Attempt) -> Attempt | None:
    """Return a larger number of nodes that fits, the least unless many fail to.

    Fitting is not monotone in the number of nodes, because batches and heads must divide; so
    counts are tried one after the other from the least whose memory holds the states. After
    `NODE_COUNTS_TRIED` of them they are doubled, and the last doubling is bisected. None, too,
    where a number of nodes alone does not change the file: see `PoolSource.node_keys`.
    """
    source, document = start.cluster.sources[0], start.cluster.document
    if not source.node_keys:
        return None
    pool = start.cluster.cluster.pools[0]
    problem = _context(start).problem
    # The names of further nodes are not known.
    entry = {key: value for key, value in document["pools"][0].items() if key != "hosts"}
    if not source.own_domain:  # a rack that is not full yet grows with its nodes
        entry = {key: value for key, value in entry.items() if key != "scale_up_domain"}

    def attempt(n: int) -> Attempt:
        changed = cluster_from_dict({**document, "pools": [{**entry, "nodes": n}]})
        fields = {f"pools.{source.index}.{key}": n for key in source.node_keys}
        change = _joined(start, f"{n} nodes ({n * pool.devices_per_node} devices)")
        return replace(
            start,
            change=change,
            cluster=changed,
            kind="hardware",
            factor=n / pool.n_nodes,
            fields={**start.fields, **fields},
        )

    def fits(n: int) -> bool:
        if _is_replicated(start) and start.model.job.global_batch % (n * pool.devices_per_node):
            return False
        try:
            return _fits(attempt(n))
        except (SpecError, SearchError):  # its scale-up domain, bounds, slices do not allow it
            return False

    maximum = pool.n_nodes << MAX_NODE_DOUBLINGS
    least = least_true(
        lambda n: states_can_fit(problem, n * pool.devices_per_node), pool.n_nodes + 1, maximum
    )
    counts = range(least, maximum + 1)
    if torus := pool.accelerator.torus:  # few counts are slices
        slices = (n for n in counts if slice_shape(torus, n * pool.devices_per_node))
        tried = itertools.islice(slices, NODE_COUNTS_TRIED)
        return next((attempt(n) for n in tried if fits(n)), None)
    for n in counts[:NODE_COUNTS_TRIED]:
        if fits(n):
            return attempt(n)
    high = least + NODE_COUNTS_TRIED - 1
    for _ in range(MAX_NODE_DOUBLINGS):
        low, high = high, high * 2
        if fits(high):
            # A smaller count that fits, if the bisection meets one; `high` does in any case.
            return attempt(1 + largest_true(lambda n: not fits(n), low + 1, high - 1))
    return None
