"""When nothing fits: the smallest changes after which a plan exists, each found by a search."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from planner.inputs import ClusterInput, ModelInput, cluster_from_dict, model_from_dict
from planner.options import Asked, SolveOptions
from planner.result import Relaxation
from searches.executors import SerialExecutor
from searches.rules import Context
from searches.search import Candidate, Outcome, search

MAX_NODE_DOUBLINGS = 12


@dataclass(frozen=True, slots=True)
class Attempt:
    """A change in words, and the question after it."""

    change: str
    model: ModelInput
    cluster: ClusterInput
    options: SolveOptions
    fields: Mapping[str, object] = field(default_factory=dict)
    """Changed fields of the two files, by path."""


def find_relaxations(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    closest: Candidate | None,
    asked: Asked,
) -> tuple[Relaxation, ...]:
    """Return the changes that make the job fit, those that change least first.

    `closest` is the plan that misses the memory by least, if memory is what is missing.
    """
    start = Attempt("", model, cluster, options)
    found = [
        relaxation
        for attempt in _small_changes(start, closest)
        if (relaxation := _relaxation(attempt, asked))
    ]
    more = _more_nodes(start)
    relaxation = _relaxation(more, asked) if more else None
    return (*found, relaxation) if relaxation else tuple(found)


def _search(attempt: Attempt) -> Outcome:
    from planner.solving import make_problem

    problem = make_problem(attempt.model, attempt.cluster, attempt.options)
    restrictions = replace(attempt.options.search_options(), n_finalists=1)
    return search(Context(problem, restrictions, problem.pool.n_devices), SerialExecutor())


def _relaxation(attempt: Attempt, asked: Asked) -> Relaxation | None:
    """Return the change with its best plan and its command; None when nothing fits after it."""
    finalists = _search(attempt).finalists
    if not finalists:
        return None
    command = asked.command(attempt.options, attempt.fields)
    return Relaxation(attempt.change, command, finalists[0].layout, finalists[0].step_s)


def _of_cluster(start: Attempt, change: str, path: str, value: object) -> Attempt:
    """Change a field of the only pool; its place in the user's file may be another."""
    changed = cluster_from_dict(start.cluster.document, [(path, value)])
    in_file = f"pools.{start.cluster.sources[0].index}.{path.removeprefix('pools.0.')}"
    return replace(start, change=change, cluster=changed, fields={in_file: value})


def _of_model(start: Attempt, change: str, path: str, value: object) -> Attempt:
    changed = model_from_dict(start.model.document, [(path, value)])
    return replace(start, change=change, model=changed, fields={path: value})


def _small_changes(start: Attempt, closest: Candidate | None) -> Iterator[Attempt]:
    """Yield changes from the smallest to the largest, more devices apart."""
    options, job = start.options, start.model.job
    for axis in dict.fromkeys((*options.pins, *options.only, *options.at_most)):
        freer = replace(
            options,
            pins={a: v for a, v in options.pins.items() if a != axis},
            only={a: v for a, v in options.only.items() if a != axis},
            at_most={a: v for a, v in options.at_most.items() if a != axis},
        )
        yield replace(start, change=f"leave {axis} open", options=freer)
    if options.framework not in ("default", "any"):
        freer = replace(options, framework="default", stack=options.stack_name)
        yield replace(start, change="any framework", options=freer)
    memory = start.cluster.cluster.pools[0].accelerator.memory_bytes
    if closest and closest.peak_bytes <= memory:
        # What the closest plan leaves free, rounded down to a tenth of a GiB.
        value = f"{int((memory - closest.peak_bytes) / 2**30 * 10) / 10} GiB"
        yield _of_cluster(start, f"a memory margin of {value}", "pools.0.memory_margin", value)
    if job.precision in ("bf16", "fp16"):
        value = f"{job.precision}-grads"
        yield _of_model(start, f"gradients in {job.precision}", "training.precision", value)
    for divisor in (2, 4, 8):
        if job.seq_len % divisor == 0:
            tokens = job.seq_len // divisor
            yield _of_model(start, f"sequences of {tokens} tokens", "training.seq_len", tokens)
    n = start.cluster.cluster.pools[0].n_devices
    batch = -(-job.global_batch // n) * n
    if batch != job.global_batch:
        change = f"a global batch of {batch} sequences"
        yield _of_model(start, change, "training.global_batch", batch)


def _more_nodes(start: Attempt) -> Attempt | None:
    """Return the fewest nodes that fit: doubled until something does, then bisected.

    None, too, where a number of nodes alone does not change the file: see `PoolSource.node_keys`.
    """
    source, document = start.cluster.sources[0], start.cluster.document
    if not source.node_keys:
        return None
    pool = document["pools"][0]
    if not source.own_domain:  # a rack that is not full yet grows with its nodes
        pool = {key: value for key, value in pool.items() if key != "scale_up_domain"}

    def attempt(n: int) -> Attempt:
        devices = n * start.cluster.cluster.pools[0].devices_per_node
        changed = cluster_from_dict({**document, "pools": [{**pool, "nodes": n}]})
        fields = {f"pools.{source.index}.{key}": n for key in source.node_keys}
        change = f"{n} nodes ({devices} devices)"
        return replace(start, change=change, cluster=changed, fields=fields)

    def fits(n: int) -> bool:
        return bool(_search(attempt(n)).finalists)

    low = high = start.cluster.cluster.pools[0].n_nodes
    for _ in range(MAX_NODE_DOUBLINGS):
        low, high = high, high * 2
        if fits(high):
            return attempt(_least(low, high, fits))
    return None


def _least(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Return the least n in (low, high] found by bisection; `high` fits, `low` does not.

    Fitting is not monotone in the number of nodes (batches and heads must divide), so this is
    the least on the bisection's path, never more than twice the true one.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
