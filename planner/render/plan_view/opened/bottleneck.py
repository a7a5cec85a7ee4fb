"""What binds the plan, as `planner explain` says it: its sentences, every number with its card."""

from collections.abc import Callable
from dataclasses import dataclass

from costmodels.documentation.terms import COMPUTE_TERMS
from costmodels.layers.flops import model_flops_per_step
from costmodels.problem import Problem
from planner.analyze.bottleneck import CUT_BY, MEANING
from planner.analyze.bottleneck_levers import Bound, Lever, LeverState
from planner.render.answers.bottleneck import (
    Name,
    Sentence,
    StatedNumber,
    compute_sentence,
    headline_sentence,
    lever_sentence,
    memory_sentence,
    next_sentence,
    others,
    percent_text,
    relaxing,
)
from planner.render.plan_view.cards import Amount, CardNumber, Deck, Derivation, Label, Words
from planner.render.plan_view.quantities import exact, total

PRICED = "planner.analyze.bottleneck_levers: the same plan with this change alone"
CUT = (
    "planner.analyze.bottleneck.parts_s: the terms of the step; computing is cut in the "
    "proportion of the"
    " elasticities of the step to the rate of matrix products, the bandwidth of the memory and the"
    " latency of kernels"
)


@dataclass(frozen=True, slots=True)
class Binding:
    """What binds a plan, in sentences whose numbers open."""

    says: Words
    compute: Words
    """How far computing is from the data sheet; empty where it does not bind."""
    relaxing: tuple[Words, ...]
    """Changes that relax it, each alone."""
    next: Words
    others: tuple[Words, ...]
    """Changes that relax other parts."""
    memory: Words


def binding(deck: Deck, problem: Problem, bound: Bound) -> Binding:
    """Return what binds; the cards of the head of the view are in the deck already."""
    cards = _Cards(deck, problem, bound)

    def lever(x: Lever) -> Words:
        gain = StatedNumber(percent_text(-x.gain_frac, True), "change", lever=x)
        step = StatedNumber(f"{x.after.step_s:.4f} s", "step", lever=x)
        more = lever_sentence(bound, x)
        return cards.words(
            (Name(x.change), ": ", step, " a step, ", gain, *(("; ", *more) if more else ()))
        )

    return Binding(
        says=cards.words(headline_sentence(bound)),
        compute=cards.words(compute_sentence(bound)),
        relaxing=tuple(lever(x) for x in relaxing(bound)),
        next=cards.words(next_sentence(bound)),
        others=tuple(lever(x) for x in others(bound)),
        memory=cards.words(memory_sentence(bound)),
    )


class _Cards:
    """The cards behind the numbers of the sentences."""

    def __init__(self, deck: Deck, problem: Problem, bound: Bound) -> None:
        self.deck, self.problem, self.bound = deck, problem, bound
        self.places = {id(x): i for i, x in enumerate(bound.levers)}

    def words(self, sentence: Sentence) -> Words:
        """Return a sentence with its numbers opened."""
        return tuple(self._part(one) for one in sentence)

    def _part(self, one: str | StatedNumber | Name) -> str | CardNumber | Label:
        if isinstance(one, str):
            return one
        if isinstance(one, Name):
            return Label(one.text)
        makers: dict[str, Callable[[StatedNumber], CardNumber]] = {
            "share": self._share,
            "part": self._now,
            "saved": self._saved,
            "peak": self._peak,
            "uneven": self._uneven,
            "next step": self._next_step,
            "next share": self._next_share,
            "free": self._free,
            "lacking": self._free,
            "usable": self._usable,
            "roomier": self._roomier,
            "step": self._step,
            "gain": self._gain,
            "change": self._gain,
            "after": self._after,
            "grows": self._grows,
            "over": self._over,
        }
        return makers[one.quantity](one)

    def _share(self, one: StatedNumber) -> CardNumber:
        now = self.bound.now
        return self.deck.add(
            f"binding-share-{one.part}",
            f"share of the step: {MEANING[one.part]}",
            Amount(now.share(one.part), "%", text=one.text),
            Derivation(
                f"{one.part} / step time",
                f"{exact(now.parts[one.part], 's')} / {exact(now.step_s, 's')}",
                CUT,
                inputs=((one.part, part_formula(now, one.part)[1]),),
            ),
        )

    def _now(self, one: StatedNumber) -> CardNumber:
        now = self.bound.now
        return self._state_part(f"binding-part-{one.part}", now, one, CUT)

    def _state_part(
        self, key: str, state: LeverState, one: StatedNumber, source: str
    ) -> CardNumber:
        formula, substituted = part_formula(state, one.part)
        shown = self.deck.add(
            key,
            f"{one.part}: {MEANING[one.part]}",
            Amount(state.parts[one.part], "s"),
            Derivation(formula, substituted, source),
        )
        return CardNumber(shown.key, one.text)

    def _saved(self, one: StatedNumber) -> CardNumber:
        roomier, now = self.bound.roomier, self.bound.now
        assert roomier is not None  # it is what the sentence is about
        down = one.text.startswith("-")
        a, b = f"{roomier.step_s:.10g} s", f"{now.step_s:.10g} s"
        value = 1.0 - roomier.step_s / now.step_s
        return self.deck.add(
            "binding-saved" + ("-change" if down else ""),
            "what the step takes less without recomputation",
            Amount(-value if down else value, "%", text=one.text.replace("-", "−")),
            Derivation(
                "step without recomputation / step − 1"
                if down
                else "1 − step without recomputation / step",
                f"{a} / {b} − 1" if down else f"1 − {a} / {b}",
                "planner.analyze.elasticities.more_memory: the same layout without "
                "recomputation, evaluated separately",
            ),
        )

    def _peak(self, one: StatedNumber) -> CardNumber:
        part, job, plan = self.problem.pool.accelerator, self.problem.job, self.bound.plan
        flops = model_flops_per_step(self.problem.shape, job)
        peak = part.peak_flops_per_s[job.recipe.linear]
        return self.deck.add(
            "binding-peak",
            "model FLOPs of a step at the peak of the data sheet",
            Amount(self.bound.peak_s, "s", text=one.text),
            Derivation(
                "F / (N P): model FLOPs over devices and dense peak",
                f"{exact(flops, 'FLOP')} / ({plan.layout.n_devices:,} × {exact(peak, 'FLOP/s')})",
                "costmodels.layers.flops.model_flops_per_step; catalogue, peak rates of the "
                "accelerator",
            ),
        )

    def _uneven(self, one: StatedNumber) -> CardNumber:
        works = self.bound.works_s
        sums = total(exact(work, "s") for work in works)
        return self.deck.add(
            "binding-uneven",
            "work of the slowest pipeline stage over the mean",
            Amount(self.bound.slowest_over_mean, "", text=one.text),
            Derivation(
                "slowest × stages / sum of all",
                f"{exact(max(works), 's')} × {len(works)} / ({sums})",
                "costmodels.breakdown.virtual_stage_times: forward and backward of a micro-batch",
            ),
        )

    def _next_step(self, one: StatedNumber) -> CardNumber:
        state = self.bound.next.state
        return self._of_step(
            "binding-next-step", f"step time with {self.bound.next.after}", state, one
        )

    def _of_step(self, key: str, name: str, state: LeverState, one: StatedNumber) -> CardNumber:
        return self.deck.add(
            key,
            name,
            Amount(state.step_s, "s", text=one.text),
            Derivation(
                "sum of its terms",
                total(exact(v, "s") for v in state.terms_s.values() if v > 0.0),
                f"{PRICED}; of a larger batch for the tokens of this one",
            ),
        )

    def _next_share(self, one: StatedNumber) -> CardNumber:
        state = self.bound.next.state
        return self.deck.add(
            "binding-next-share",
            f"share of {one.part} in the step then",
            Amount(state.share(one.part), "%", text=one.text),
            Derivation(
                f"{one.part} / step time",
                f"{exact(state.parts[one.part], 's')} / {exact(state.step_s, 's')}",
                f"{PRICED}; {CUT}",
                inputs=((one.part, part_formula(state, one.part)[1]),),
            ),
        )

    def _free(self, one: StatedNumber) -> CardNumber:
        plan = self.bound.plan
        usable, peak = plan.usable_bytes, plan.breakdown.peak_bytes
        first, second = (usable, peak) if one.quantity == "free" else (peak, usable)
        return self.deck.add(
            f"binding-{one.quantity}",
            f"memory of the fullest stage that is {one.quantity}",
            Amount(first - second, "B", text=one.text),
            Derivation(
                "usable − peak" if one.quantity == "free" else "peak − usable",
                f"{round(first):,} B − {round(second):,} B",
                "memory of the stage that needs most, see there",
            ),
        )

    def _usable(self, one: StatedNumber) -> CardNumber:
        return self.deck.see("usable-memory", one.text)

    def _roomier(self, one: StatedNumber) -> CardNumber:
        roomier, margin = self.bound.roomier, self.problem.pool.memory_margin_bytes
        assert roomier is not None  # it is what the sentence is about
        return self.deck.add(
            "binding-roomier",
            "memory of a device in which the layout fits without recomputation",
            Amount(roomier.memory_bytes, "B", text=one.text),
            Derivation(
                "its peak + reserve of the pool",
                f"{round(roomier.memory_bytes - margin):,} B + {round(margin):,} B",
                "planner.analyze.elasticities.more_memory: costmodels.step.peak_bytes",
            ),
        )

    def _key(self, one: StatedNumber) -> tuple[str, Lever]:
        assert one.lever is not None  # these numbers are of levers
        return f"lever-{self.places[id(one.lever)]}", one.lever

    def _step(self, one: StatedNumber) -> CardNumber:
        key, lever = self._key(one)
        return self._of_step(f"{key}-step", f"step time with {lever.change}", lever.after, one)

    def _gain(self, one: StatedNumber) -> CardNumber:
        key, lever = self._key(one)
        after, now = f"{lever.after.step_s:.10g} s", f"{self.bound.now.step_s:.10g} s"
        change = one.quantity == "change"
        return self.deck.add(
            f"{key}-{one.quantity}",
            f"what {lever.change} changes of the step",
            Amount(
                -lever.gain_frac if change else lever.gain_frac,
                "%",
                text=one.text.replace("-", "−"),
            ),
            Derivation(
                "its step time / this plan's − 1" if change else "1 − its step time / this plan's",
                f"{after} / {now} − 1" if change else f"1 − {after} / {now}",
                "planner.analyze.bottleneck_levers: both priced with the exact pipeline",
            ),
        )

    def _after(self, one: StatedNumber) -> CardNumber:
        key, lever = self._key(one)
        return self._state_part(f"{key}-{one.part}", lever.after, one, f"{PRICED}; {CUT}")

    def _grows(self, one: StatedNumber) -> CardNumber:
        key, lever = self._key(one)
        after, now = lever.after.parts[one.part], self.bound.now.parts[one.part]
        return self.deck.add(
            f"{key}-grows",
            f"what {one.part} grows by with {lever.change}",
            Amount(after - now, "s", text=one.text),
            Derivation(
                f"{one.part} then − {one.part} now",
                f"{after:.10g} s − {now:.10g} s".replace("e-", "e−"),
                f"{PRICED}; {CUT}",
            ),
        )

    def _over(self, one: StatedNumber) -> CardNumber:
        key, lever = self._key(one)
        peak, usable = lever.after.peak_bytes, self.bound.plan.usable_bytes
        return self.deck.add(
            f"{key}-over",
            f"memory that {lever.change} needs beyond what is usable",
            Amount(peak - usable, "B", text=one.text),
            Derivation(
                "its peak − usable",
                f"{round(peak):,} B − {round(usable):,} B",
                f"{PRICED}: costmodels.step.memory_terms",
            ),
        )


def part_formula(state: LeverState, part: str) -> tuple[str, str]:
    """Return a part of the step in terms of its terms: in symbols, and with the numbers put in."""
    terms = state.terms_s
    computing = [*COMPUTE_TERMS, *(() if state.on_host else ("optimizer",))]
    if part in ("compute", "hbm", "overhead"):
        rates = [abs(min(0.0, state.elasticity[name])) for name in CUT_BY[:2]]
        rates.append(max(0.0, state.elasticity[CUT_BY[2]]))
        own = rates[("compute", "hbm", "overhead").index(part)]
        sums = total(exact(terms[t], "s") for t in computing if terms.get(t, 0.0) > 0.0)
        if not any(rates):
            return "what the device computes", sums
        e = [f"{rate:.8g}".replace("e-", "e−") for rate in (own, *rates)]
        formula, text = (
            "C e / (e_matmul + e_hbm + e_kernel), C what the device computes",
            (f"({sums}) × {e[0]} / ({e[1]} + {e[2]} + {e[3]})"),
        )
        if part == "overhead":
            return f"{formula}, + fixed", f"{text} + {exact(terms['fixed'], 's')}"
        return formula, text
    if part == "memory":
        names = ["recompute", "offload", *(("optimizer",) if state.on_host else ())]
        return " + ".join(names), total(exact(terms[t], "s") for t in names)
    return f"term {part} of the step", exact(terms[part], "s")
