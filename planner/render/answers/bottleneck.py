"""What binds a plan, what relaxes it and what comes next: for terminals, reports and pages."""

from collections.abc import Iterable
from dataclasses import dataclass

from planner.analyze.bottleneck import MEANING, MEMORY
from planner.analyze.bottleneck_levers import MOST_SHOWN, Bound, Lever
from planner.documents import Grid, GridSpacing, Paragraph, Part
from planner.units import GIB

SHOWN_SHARE = 0.005
"""Parts that take less of the step are not named."""


def percent_text(share: float, sign: bool = False) -> str:
    """Return a share as per cent."""
    return f"{share * 100:{'+' if sign else ''}.1f}%"


@dataclass(frozen=True, slots=True)
class StatedNumber:
    """A number of a sentence: its text, and which one it is."""

    text: str
    quantity: str
    """`share` and `part` of the step, `saved` by a plan without recomputation, `peak` time of the
    model's FLOPs, `uneven` stages, `next step`, `next share`, `free`, `lacking`, `usable` and
    `roomier` memory; of a lever its `step`, `gain`, `before` and `after` of the part that it
    relaxes, `grows` of the one that grows most, `over` the memory."""
    part: str = ""
    lever: Lever | None = None


@dataclass(frozen=True, slots=True)
class Name:
    """What is changed, by name: digits in it count nothing."""

    text: str


Sentence = tuple[str | StatedNumber | Name, ...]
"""A sentence as texts, numbers and names: pages let its numbers be opened."""


def plain_text(sentence: Sentence) -> str:
    """Return a sentence as text."""
    return "".join(part if isinstance(part, str) else part.text for part in sentence)


def _share(bound: Bound, part: str) -> StatedNumber:
    return StatedNumber(percent_text(bound.now.share(part)), "share", part)


def bottleneck_headline(bound: Bound) -> str:
    """Return what binds in one sentence."""
    return plain_text(headline_sentence(bound))


def headline_sentence(bound: Bound) -> Sentence:
    """Return what binds in one sentence, numbers apart."""
    now, binds = bound.now, bound.binds
    rest = [p for p in bound.ordered if p != binds and now.share(p) >= SHOWN_SHARE]
    others: Sentence = ()
    for p in rest[:4]:
        others += (", " if others else "", f"{p} ", _share(bound, p))
    if binds == MEMORY and bound.roomier is not None:
        saved = StatedNumber(percent_text(1.0 - bound.roomier.step_s / now.step_s), "saved")
        lead = "memory: without recomputation a step takes "
        return (lead, saved, " less; of the step as it is, ", *others)
    if not bound.dominates:
        first = (f"nothing dominates: the largest part is {binds} ", _share(bound, binds))
        return (*first, ", then ", *others)
    then = ("; then ", *others) if others else ()
    return (f"{binds}, ", _share(bound, binds), f" of the step ({MEANING[binds]})", *then)


UNEVEN = 1.05
"""Stages are called uneven where the slowest works so many times as long as the mean."""


def compute_sentence(bound: Bound) -> Sentence:
    """Return how far computing is from the data sheet, numbers apart."""
    compute_s = bound.now.parts["compute"]
    if bound.binds != "compute" or bound.peak_s >= compute_s:
        return ()
    rest: Sentence = ("lost to kernel efficiency",)
    if bound.slowest_over_mean >= UNEVEN:
        times = StatedNumber(f"{bound.slowest_over_mean:.2f}", "uneven")
        rest += (" and to uneven stages: the slowest works ", times, " times as long as the mean")
    return (
        "Of these ",
        StatedNumber(f"{compute_s:.2f} s", "part", "compute"),
        ", ",
        StatedNumber(f"{bound.peak_s:.2f} s", "peak"),
        " are the model's FLOPs at the data-sheet peak; the rest is ",
        *rest,
    )


def lever_sentence(bound: Bound, lever: Lever) -> Sentence:
    """Return one change with its price, without its gain, numbers apart."""
    now, after = bound.now, lever.after
    part = lever.relaxes
    messages: list[Sentence] = []
    if lever.kind == "memory":
        over = after.peak_bytes - bound.plan.usable_bytes
        number = StatedNumber(f"{over / GIB:.1f} GiB", "over", lever=lever)
        messages.append(("needs ", number, " more memory"))
    elif now.parts[part] > after.parts[part]:
        before = StatedNumber(f"{now.parts[part]:.2f}", "part", part)
        then = StatedNumber(f"{after.parts[part]:.2f} s", "after", part, lever)
        messages.append((f"{part} ", before, " -> ", then))
    if lever.costs:
        grown = after.parts[lever.costs] - now.parts[lever.costs]
        number = StatedNumber(f"+{grown:.2f} s", "grows", lever.costs, lever)
        messages.append((f"{lever.costs} ", number))
    if not lever.searched:
        messages.append(("off by default",))
    return tuple(x for i, one in enumerate(messages) for x in ((", ",) if i else ()) + one)


def next_sentence(bound: Bound) -> Sentence:
    """Return the next bottleneck in one sentence, numbers apart."""
    x = bound.next
    share = StatedNumber(percent_text(x.state.share(x.part)), "next share", x.part)
    if not x.after:
        lead = f"No tried change helps; the next bottleneck is {x.part}, "
        return (lead, share, " of the step")
    if x.same:
        return ("It stays the largest part (", share, ") even with ", Name(x.after))
    step = StatedNumber(f"{x.state.step_s:.2f} s", "next step")
    return (
        "With ",
        Name(x.after),
        " a step takes ",
        step,
        f", and {x.part} takes most of it (",
        share,
        ")",
    )


def relaxing(bound: Bound) -> tuple[Lever, ...]:
    """Return what to name of the changes that relax what binds.

    Those that save time, the best of each axis; where none does, the one that costs least.
    """
    own = bound.relaxing(bound.binds)
    return _best_of_each(x for x in own if x.gain_frac > 0) or own[:1]


def others(bound: Bound) -> tuple[Lever, ...]:
    """Return what to name of the changes that relax other parts, fit and save time."""
    return _best_of_each(
        x
        for x in bound.levers
        if x.relaxes != bound.binds and x.kind != MEMORY and x.gain_frac > 0
    )


def _best_of_each(levers: Iterable[Lever]) -> tuple[Lever, ...]:
    """Return the first change of each axis of layout or numbers, and all others, a few of them."""
    entries: dict[str, Lever] = {}
    for x in levers:
        entries.setdefault(x.axis, x)
    return tuple(entries.values())[:MOST_SHOWN]


def memory_sentence(bound: Bound) -> Sentence:
    """Return what more memory would give, in one sentence, numbers apart."""
    plan = bound.plan
    free = plan.usable_bytes - plan.breakdown.peak_bytes
    text = f"{plan.usable_bytes / GIB:.1f}"
    lead: Sentence = (
        "Memory: ",
        StatedNumber(f"{free / GIB:.1f}", "free"),
        " of ",
        StatedNumber(f"{text} GiB", "usable"),
        " are free",
    )
    if free < 0:
        lead = (
            "Memory: it needs ",
            StatedNumber(f"{-free / GIB:.1f} GiB", "lacking"),
            " more than the ",
            StatedNumber(text, "usable"),
            " usable",
        )
    own = bound.relaxing(MEMORY)
    part = plan.breakdown.rows.problem.pool.accelerator
    if bound.roomier is not None and bound.roomier.memory_bytes > part.memory_bytes:
        saved = 1.0 - bound.roomier.step_s / bound.now.step_s
        return (
            *lead,
            "; a device of ",
            StatedNumber(f"{bound.roomier.memory_bytes / GIB:.1f} GiB", "roomier"),
            " would do without recomputation, ",
            StatedNumber(percent_text(-saved, True), "saved"),
        )
    walled = [x for x in own if x.kind == MEMORY]
    best = min(walled, key=lambda x: x.after.peak_bytes, default=None)
    if best is None:
        return (*lead, "; no single change that up to twice as much would allow is faster")
    over = best.after.peak_bytes - plan.usable_bytes
    return (
        *lead,
        "; with ",
        StatedNumber(f"{over / GIB:.1f} GiB", "over", lever=best),
        " more memory, ",
        Name(best.change),
        " would save ",
        StatedNumber(percent_text(best.gain_frac), "gain", lever=best),
    )


def _lever_grid(bound: Bound, levers: Iterable[Lever], caption: str) -> Part:
    rows = [
        (
            *(x.change, f"{x.after.step_s:.4f} s", percent_text(-x.gain_frac, True)),
            plain_text(lever_sentence(bound, x)),
        )
        for x in levers
    ]
    if not rows:
        return Paragraph("  nothing that was tried")
    spacing = GridSpacing((32, 11, 7, 0), gaps=(0, 1, 1, 2), indent=2, hang=54)
    return Grid(("",) * 4, tuple(rows), caption, (1, 2), spacing=spacing)


def bottleneck_parts(bound: Bound) -> list[Part]:
    """Return what binds, what relaxes it, what comes next, what else helps."""
    compute, rest = compute_sentence(bound), others(bound)
    relaxed = "What would help (each change evaluated separately)"
    helped = "Other changes that would help"
    parts: list[Part] = [Paragraph(bottleneck_headline(bound), label="Bottleneck:")]
    if compute:
        parts.append(Paragraph(f"{plain_text(compute)}.", label=" "))
    parts.append(Paragraph(f"{relaxed}:"))
    parts.append(_lever_grid(bound, relaxing(bound), relaxed))
    parts.append(Paragraph(f"{plain_text(next_sentence(bound))}.", label="Next bottleneck:"))
    if rest:
        parts.append(Paragraph(f"{helped}:"))
        parts.append(_lever_grid(bound, rest, helped))
    return [*parts, Paragraph(f"{plain_text(memory_sentence(bound))}.", label=" ")]
