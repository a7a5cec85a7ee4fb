"""The table of all framework rules, and the questions that are asked of it.

`broken_rules` is for one case: the emitters and `planner check`. `framework_mask`,
`framework_batches` and `runnable` are the same predicates over arrays: they restrict the search.
"""

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from costmodels.plans import Layout, ShapeTable
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, TrainingJob
from searches.frameworks.carried import carried_rules, device_rule, layer_kind_rule, tuning_rules
from searches.frameworks.case import Case, NotStatedError, PlanKinds
from searches.frameworks.registry import (
    framework_names,
    framework_rules,
    load,
    searched_frameworks,
)
from searches.frameworks.releases import version_key
from searches.frameworks.rule import Broken, FrameworkRule, applies, spoken
from searches.space.plan_masks import Coupled, alike_rows, packed_options

Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]


def rules_by_code() -> dict[str, FrameworkRule]:
    """Return all rules of all frameworks by code."""
    return {
        rule.code: rule
        for name in framework_names()
        for rule in (
            *_all_rules(name),
            device_rule(framework_rules(name)),
            layer_kind_rule(framework_rules(name)),
            *tuning_rules(framework_rules(name)),
        )
    }


@cache
def _all_rules(framework: str) -> tuple[FrameworkRule, ...]:
    return tuple(rule for path in framework_rules(framework).rules for rule in load(path))


@lru_cache(maxsize=256)  # releases may be a caller's
def rules_of(
    framework: str, level: str | None = None, version: str = ""
) -> tuple[FrameworkRule, ...]:
    """Return the rules of one release of a framework, the one that plans are written for.

    `version` names another than the key of the framework does.
    """
    release = framework_rules(framework).rules_version(version)
    return tuple(
        rule
        for rule in (*_all_rules(framework), *carried_rules(framework))
        if level in (None, rule.level) and applies(rule, release)
    )


_UNDECIDED: dict[str, tuple[type[Exception], ...]] = {
    "layout": (NotStatedError, ZeroDivisionError),
    "settings": (NotStatedError, ZeroDivisionError, TypeError, ValueError),
}
"""What a predicate raises where it cannot be decided: not stated, a degree of 0, an odd type."""


def broken_rules(
    framework: str, case: Case, *, level: str | None = None, version: str = ""
) -> tuple[Broken, ...]:
    """Return the rules that one case breaks, in the order of the table.

    `level` restricts them to `layout` or `settings`. Without `version` the release that plans are
    written for. A rule that needs something that the case does not state is left out, and so is
    one over a setting whose value is of another type than the framework takes. Of rules with one
    cause the one that says it in the framework's words stands for all (`covers`).
    """
    results = []
    for rule in rules_of(framework, level, version):
        try:
            if rule.broken(case):
                results.append(_broken(rule, case, _lifting_release(framework, rule, version)))
        except _UNDECIDED[rule.level]:
            continue
    covered = {code for one in results for code in one.rule.covers}
    return tuple(one for one in results if one.rule.code not in covered)


def _broken(rule: FrameworkRule, case: Case, other_release: str = "") -> Broken:
    """Return a broken rule with its numbers; its title alone where a number is not stated.

    `other_release` is one that does not have the rule.
    """
    ways = [f"framework {other_release}"] if other_release else []
    try:
        closest = spoken(rule.closest, case)
        return Broken(
            rule, spoken(rule.reason, case), ", or ".join([closest] * bool(closest) + ways)
        )
    except NotStatedError:
        return Broken(rule, rule.title, ", or ".join(ways))


def _lifting_release(framework: str, rule: FrameworkRule, version: str) -> str:
    """Return the key of the nearest release without a rule, where a release was named.

    The oldest of those that are newer, else the newest of those before.
    """
    record = framework_rules(framework)
    if not rule.versions or not (version or record.is_pinned):
        return ""
    here = version_key(version or record.release)
    free = [one for one in record.known_releases if not applies(rule, one.rules_version)]
    newer = [one for one in free if version_key(one.version) > here]
    nearest = newer[:1] or free[-1:]
    return record.at(nearest[0].version).key if nearest else ""


@cache
def schedule_runs(framework: str, schedule: str) -> bool:
    """Tell whether a framework, or one of those that `default` searches, has a schedule."""
    case = Case.of_run({}, layout={"schedule": schedule})
    return any(
        not broken_rules(name, case, level="layout") for name in searched_frameworks(framework)
    )


@cache
def order_runs(framework: str, rank_order: str) -> bool:
    """Tell whether a framework, or one of those that `default` searches, can number ranks so."""
    case = Case.of_run({}, layout={"rank_order": rank_order})
    searched = () if framework == "any" else searched_frameworks(framework)
    runs = (not broken_rules(name, case, level="layout") for name in searched)
    return framework == "any" or any(runs)


@lru_cache(maxsize=4096)
def refusals(
    target: str,
    layout: Layout,
    shape: ModelShape,
    job: TrainingJob | None = None,
    vendor: str = "",
) -> tuple[str, ...]:
    """Return every reason why `target` cannot run the layout; empty when it can.

    Without `job` the rules about precision and sequence length are left out, without the `vendor`
    of the accelerator the one about accelerators.
    """
    broken = broken_rules(target, Case.of_layout(layout, shape, job, vendor), level="layout")
    return tuple(one.text for one in broken)


def first_release(
    framework: str, layout: Layout, shape: ModelShape, job: TrainingJob | None = None
) -> str:
    """Return the oldest known release that runs a layout which the newest runs.

    Releases between it and the newest run it too.
    """
    first, case = framework_rules(framework).release, None
    for release, rules in _rules_before(framework):
        case = case or Case.of_layout(layout, shape, job)
        if any(_is_broken(rule, case) for rule in rules):
            break
        first = release
    return first


@cache
def _rules_before(framework: str) -> tuple[tuple[str, tuple[FrameworkRule, ...]], ...]:
    """Return the older releases, the newest first, with the rules that the next one lifted."""
    record = framework_rules(framework)
    later, rows = set(rules_of(framework, "layout")), []
    for one in reversed(record.known_releases[:-1]):
        own = rules_of(framework, "layout", one.version)
        rows.append((one.version, tuple(rule for rule in own if rule not in later)))
        later = set(own)
    return tuple(rows)


def _is_broken(rule: FrameworkRule, case: Case) -> bool:
    try:
        return bool(rule.broken(case))
    except _UNDECIDED[rule.level]:
        return False


def runnable_layouts(
    frameworks: Sequence[str],
    layouts: Sequence[Layout],
    shape: ModelShape,
    job: TrainingJob | None = None,
    vendor: str = "",
) -> Bools:
    """Return which layouts of one job some frameworks can run: those without `refusals`.

    `(n_frameworks, n_layouts)`. Without `job` and `vendor` as in `refusals`.
    """
    case = Case.of_layouts(layouts, shape, job, vendor)
    broken = np.zeros((len(frameworks), len(layouts)), dtype=bool)
    for framework, hits in zip(frameworks, broken, strict=True):
        for rule in rules_of(framework, "layout"):
            try:
                hits |= np.asarray(rule.broken(case), dtype=bool)
            except _UNDECIDED["layout"]:
                continue
    return ~broken


def framework_mask(
    framework: str, problem: Problem, shapes: ShapeTable, kinds: PlanKinds
) -> Bools:
    """Return which plans a framework can run, `(n_shapes, n_modes, n_shardings, n_options)`.

    `refusals` over arrays (tests compare the two). Rules about the micro-batches are apart, in
    `framework_batches`; no rule couples them with the other free axes.
    """
    return _mask((framework,), problem, shapes, kinds)


def framework_batches(framework: str, problem: Problem, shapes: ShapeTable, mbs: Ints) -> Bools:
    """Return which micro-batch sizes a framework can run, `(n_shapes, n_sizes)`."""
    return _batches((framework,), problem, shapes, mbs)


def runnable(framework: str, problem: Problem, shapes: ShapeTable, kinds: PlanKinds) -> Bools:
    """Return the plans of a framework's space: `default` is what Megatron-LM or DeepSpeed runs.

    `(n_shapes, n_modes, n_shardings, n_options)`.
    """
    return _mask(_searched(framework, problem), problem, shapes, kinds)


def runnable_batches(framework: str, problem: Problem, shapes: ShapeTable, mbs: Ints) -> Bools:
    """Return the micro-batch sizes of a framework's space, `(n_shapes, n_sizes)`."""
    return _batches(_searched(framework, problem), problem, shapes, mbs)


def runnable_kinds(
    framework: str, problem: Problem, shapes: ShapeTable, kinds: PlanKinds
) -> Coupled:
    """Return `runnable` once for each kind of shape, and the kind of each shape.

    Shapes of a kind break the same rules with the same free axes. There are few kinds, and the
    whole mask would be large.
    """
    case = Case.of_shapes(problem, shapes, kinds)
    broken = [_hits(name, case, of_batches=False) for name in _searched(framework, problem)]
    n, size = len(shapes), (len(kinds.sp), len(kinds.shardings), len(kinds.recompute))
    columns = [
        hits.reshape(n, -1)
        for masks in broken
        for hits in (masks or {}).values()
        if n and len(hits) == n
    ]
    total = np.concatenate(columns, axis=1) if columns else np.zeros((n, 0), dtype=bool)
    firsts, kind_of = alike_rows(total)
    n_options = size[-1]
    every = packed_options(np.ones((1, 1, 1, 1), dtype=bool), n_options)
    bits = np.zeros((len(firsts), *size[:-1], every.shape[-1]), dtype=np.uint8)
    for masks in broken:
        if masks is None:
            continue
        some = (hits[firsts] if len(hits) == n else hits for hits in masks.values())
        merged = np.zeros((1, 1, 1, 1), dtype=np.uint8)
        for hits in sorted(some, key=lambda x: x.size):
            merged = merged | packed_options(hits, n_options)
        bits |= ~merged & every
    return Coupled(bits, n_options, kind_of)


def _searched(framework: str, problem: Problem) -> tuple[str, ...]:
    """Return the frameworks of a space on the accelerators of a problem."""
    return searched_frameworks(framework, problem.pool.accelerator.vendor)


def _mask(names: tuple[str, ...], problem: Problem, shapes: ShapeTable, kinds: PlanKinds) -> Bools:
    case = Case.of_shapes(problem, shapes, kinds)
    runs = reduce(np.logical_or, (_kept(name, case, of_batches=False) for name in names))
    size = (len(shapes), len(kinds.sp), len(kinds.shardings), len(kinds.recompute))
    return np.broadcast_to(runs, size)


def _batches(names: tuple[str, ...], problem: Problem, shapes: ShapeTable, mbs: Ints) -> Bools:
    case = Case.of_batches(problem, shapes, mbs)
    runs = reduce(np.logical_or, (_kept(name, case, of_batches=True) for name in names))
    return np.broadcast_to(runs, (len(shapes), len(mbs)))


def _kept(framework: str, case: Case, *, of_batches: bool) -> Bools:
    """Return where no rule is broken; rules that the case cannot decide are left out."""
    broken = _hits(framework, case, of_batches=of_batches)
    return np.zeros((), dtype=bool) if broken is None else _none_broken(broken.values())


def _none_broken(broken: Iterable[Bools]) -> Bools:
    """Return where none of some masks holds, the small ones merged first."""
    merged: Bools = np.zeros((), dtype=bool)
    for hits in sorted(broken, key=lambda x: x.size):
        merged = merged | hits
    return ~merged


def _hits(framework: str, case: Case, *, of_batches: bool) -> dict[tuple[int, ...], Bools] | None:
    """Return where some rule is broken, by the axes that rules look at; None if it is everywhere.

    Rules that the case cannot decide are left out.
    """
    broken: dict[tuple[int, ...], Bools] = {}
    for rule in rules_of(framework, "layout"):
        if rule.batches != of_batches and not rule.is_of_job:
            continue
        try:
            hits = np.asarray(rule.broken(case), dtype=bool)
        except NotStatedError:
            continue
        if not hits.ndim:  # about the job or the model: it holds for all plans, or for none
            if hits:
                return None
            continue
        others = broken.get(hits.shape)
        broken[hits.shape] = hits if others is None else others | hits
    return broken
