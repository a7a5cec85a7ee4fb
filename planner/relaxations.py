"""When nothing fits: the smallest changes after which a plan exists, each found by a search."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.inputs import ClusterInput, ModelInput, cluster_from_dict, model_from_dict
from planner.options import SolveOptions
from planner.result import Relaxation
from searches.executors import SerialExecutor
from searches.options import TEXT_AXES
from searches.rules import Context
from searches.search import Candidate, Outcome, search

MAX_NODE_DOUBLINGS = 12
Attempt = tuple[str, list[str], ModelInput, ClusterInput, SolveOptions]
"""A change in words, the command's extra words, and the changed inputs."""


def find_relaxations(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    closest: Candidate | None,
    names: tuple[str, str],
) -> tuple[Relaxation, ...]:
    """Return the changes that make the job fit, those that change least first.

    `closest` is the plan that misses the memory by least, if memory is what is missing.
    """
    found = [
        _answer(attempt, names)
        for attempt in _small_changes(model, cluster, options, closest)
        if _fits(attempt)
    ]
    more = _more_nodes(model, cluster, options)
    if more:
        found.append(_answer(more, names))
    return tuple(found)


def _best(attempt: Attempt) -> Outcome:
    from planner.solving import make_problem

    _, _, model, cluster, options = attempt
    problem = make_problem(model, cluster, options)
    restrictions = replace(options.search_options(), n_finalists=1)
    return search(Context(problem, restrictions, problem.pool.n_devices), SerialExecutor())


def _fits(attempt: Attempt) -> bool:
    return bool(_best(attempt).finalists)


def _answer(attempt: Attempt, names: tuple[str, str]) -> Relaxation:
    best = _best(attempt).finalists[0]
    words = ["planner", "solve", *names, *attempt[1]]
    return Relaxation(attempt[0], shlex.join(words), best.layout, best.step_s)


def _set(path: str, value: object) -> list[str]:
    return ["--set", f"{path}={value}"]


def _kept(options: SolveOptions) -> list[str]:
    """Return the words that repeat the user's own restrictions."""

    def shown(axis: str, value: int) -> str:
        return TEXT_AXES[axis][value] if axis in TEXT_AXES else str(value)

    words: list[str] = []
    for axis, value in options.pins.items():
        words += ["--pin", f"{axis}={shown(axis, value)}"]
    for axis, values in options.only.items():
        words += ["--only", f"{axis}={','.join(shown(axis, v) for v in sorted(values))}"]
    for axis, value in options.at_most.items():
        words += ["--max", f"{axis}={value}"]
    if options.framework != "default":
        words += ["--framework", options.framework]
    for name in sorted(options.allow):
        words += ["--allow", name]
    return words


def _small_changes(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, closest: Candidate | None
) -> Iterator[Attempt]:
    """Yield changes from the smallest to the largest, more devices apart."""
    for axis in (*options.pins, *options.only, *options.at_most):
        freer = replace(
            options,
            pins={a: v for a, v in options.pins.items() if a != axis},
            only={a: v for a, v in options.only.items() if a != axis},
            at_most={a: v for a, v in options.at_most.items() if a != axis},
        )
        yield (f"leave {axis} open", _kept(freer), model, cluster, freer)
    if options.framework not in ("default", "any"):
        freer = replace(options, framework="default", stack=options.stack_name)
        yield ("any framework", _kept(freer), model, cluster, freer)
    kept = _kept(options)
    pool = cluster.cluster.pools[0]
    if closest and closest.peak_bytes <= pool.accelerator.memory_bytes:
        # What the closest plan leaves free, rounded down to a tenth of a GiB.
        spare = int((pool.accelerator.memory_bytes - closest.peak_bytes) / 2**30 * 10) / 10
        path, value = "pools.0.memory_margin", f"{spare} GiB"
        changed = _cluster_with(cluster, path, value)
        yield (f"a memory margin of {value}", kept + _set(path, value), model, changed, options)
    if model.job.precision in ("bf16", "fp16"):
        value = f"{model.job.precision}-grads"
        changed_model = _model_with(model, "training.precision", value)
        words = kept + _set("training.precision", value)
        yield (f"gradients in {model.job.precision}", words, changed_model, cluster, options)
    for divisor in (2, 4, 8):
        if model.job.seq_len % divisor == 0:
            tokens = model.job.seq_len // divisor
            changed_model = _model_with(model, "training.seq_len", tokens)
            words = kept + _set("training.seq_len", tokens)
            yield (f"sequences of {tokens} tokens", words, changed_model, cluster, options)
    yield from _batches(model, cluster, options, kept)


def _batches(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, kept: list[str]
) -> Iterator[Attempt]:
    """Yield the next global batch that divides over all devices."""
    n = cluster.cluster.pools[0].n_devices
    value = -(-model.job.global_batch // n) * n
    if value != model.job.global_batch:
        changed = _model_with(model, "training.global_batch", value)
        words = kept + _set("training.global_batch", value)
        yield (f"a global batch of {value} sequences", words, changed, cluster, options)


def _cluster_with(cluster: ClusterInput, path: str, value: object) -> ClusterInput:
    return cluster_from_dict(cluster.document, [(path, value)])


def _model_with(model: ModelInput, path: str, value: object) -> ModelInput:
    return model_from_dict(model.document, [(path, value)])


def _more_nodes(model: ModelInput, cluster: ClusterInput, options: SolveOptions) -> Attempt | None:
    """Return the fewest nodes that fit: doubled until something does, then bisected."""
    nodes = cluster.cluster.pools[0].n_nodes

    def attempt(n: int) -> Attempt:
        changed = _cluster_with(cluster, "pools.0.nodes", n)
        devices = changed.cluster.pools[0].n_devices
        words = _kept(options) + _set("pools.0.nodes", n)
        return (f"{n} nodes ({devices} devices)", words, model, changed, options)

    low, high = nodes, nodes
    for _ in range(MAX_NODE_DOUBLINGS):
        low, high = high, high * 2
        if _fits(attempt(high)):
            return attempt(_least(low, high, lambda n: _fits(attempt(n))))
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
