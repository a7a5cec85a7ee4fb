"""What explains a plan: its bottleneck and elasticities, or one term of it with its numbers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from costmodels.documentation.terms import ALIASES, RUN_TERMS, TERMS, Term
from costmodels.problem import Problem
from planner.analyze.bottleneck_levers import Bound, bound_of
from planner.analyze.elasticities import elasticities
from planner.analyze.run_terms import RUN_NUMBERS
from planner.analyze.terms import Numbers, term_numbers
from planner.documents import LibraryAnswer
from planner.errors import UsageError
from planner.solver.answer.result import Plan
from planner.solver.calibration.file import Calibration
from planner.solver.options import SolveOptions
from planner.specs.yaml.document import close_names


@dataclass(frozen=True)
class Explanation(LibraryAnswer):
    """A plan with what explains it; one term of it where `term` names one."""

    problem: Problem
    plan: Plan
    term: str
    calibration: Calibration | None
    """What priced it: measured runs that anchor it are named."""
    framework: str = "any"
    """Whose rules changes of the plan must keep."""

    @property
    def opened(self) -> Term | None:
        """The term that is opened, if any."""
        return named_term(self.term) if self.term else None

    def numbers(self, term: Term) -> Numbers:
        """Return what a term is made of, with the numbers of this plan."""
        if term.kind == "run":
            return RUN_NUMBERS[term.name](self.problem, self.plan)
        return term_numbers(term, self.problem, self.plan)

    @cached_property
    def bound(self) -> Bound:
        """What binds the plan."""
        return bound_of(self.problem, self.plan, self.framework)

    @cached_property
    def elasticity(self) -> dict[str, float]:
        """Per cent of the step by per cent of each figure."""
        return elasticities(self.problem, self.plan.layout)

    def to_json(self) -> dict[str, Any]:
        """Return the plan, the name of the term, and what binds the plan where none is opened."""
        return {
            "plan_id": self.plan.plan_id,
            "term": self.term,
            "plan": self.plan.to_json(),
            "binding": None if self.term else self.bound.to_json(),
        }


def explain(problem: Problem, plan: Plan, options: SolveOptions, term: str = "") -> Explanation:
    """Return what explains a plan, or one term of it; `UsageError` for an unknown term."""
    if term:
        named_term(term)
    return Explanation(problem, plan, term, options.calibration, run_stack(options))


def run_stack(options: SolveOptions) -> str:
    """Return the framework whose rules changes of a plan must keep; `any` where none is named."""
    return "any" if options.framework == "default" else options.framework


def named_term(name: str) -> Term:
    """Return a term of the step, of memory or of the run; `UsageError` for another name."""
    terms = {**TERMS, **RUN_TERMS}
    term = terms.get(ALIASES.get(name, name))
    if term is None:
        near = close_names(name, [*terms, *ALIASES])
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no term {name!r}", f"{hint}terms: {', '.join(terms)}", "term")
    return term
