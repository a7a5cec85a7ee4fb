"""What a search is told: one record that every interface makes and `solve` reads."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from costmodels.stacks import STACKS
from planner.errors import UsageError
from planner.frameworks.registry import named_space
from planner.option_names import SEARCH_FIELDS, option
from planner.solver.calibration.file import Calibration, load_calibration
from planner.solver.calibration.reference import Reference, with_reference
from planner.solver.options import (
    SolveOptions,
    limit_codes,
    list_codes,
    parse_goals,
    parse_memory_margin,
    parse_pools,
    pin_codes,
)
from planner.solver.sources import Overrides
from planner.specs.schema import SearchSpec
from planner.specs.search.axis_values import axis_value
from planner.specs.search.objectives import OBJECTIVES, parse_budget, parse_pareto
from planner.specs.search.schema_values import often_one_of, one_of
from planner.specs.search.section import ALLOWANCES, POOLS
from searches.frameworks.registry import framework_spaces

Calibrations = Calibration | str | os.PathLike[str] | None
"""A calibration, the path of its file, or nothing for the one that ships."""
GOALS = (
    "pools",
    "objective",
    "within",
    "memory_margin",
    "deadline",
    "budget",
    "step_limit_s",
    "pareto",
    "top",
    "all_variants",
)
"""Fields that say what is wanted of the plans; the others say which plans there are."""


FieldValue = bool | int | float | str
"""A value of an axis or of a field as users write it: a number, a switch or a word."""


Framework = Annotated[
    str, Field(json_schema_extra=often_one_of("FrameworkName", lambda: ("", *framework_spaces())))
]
"""A framework, with `@` and a release if one is meant, `default` or `any`; empty: `default`."""
Objective = Annotated[str, Field(json_schema_extra=one_of("ObjectiveName", ("", *OBJECTIVES)))]
"""What is to be best; empty: the step time."""
FrontAxis = Annotated[str, Field(json_schema_extra=often_one_of("FrontAxis", lambda: OBJECTIVES))]
"""An objective of a front; spaces around it are nothing."""
Pools = Annotated[str, Field(json_schema_extra=one_of("PoolsMode", ("", *POOLS)))]
"""Whether one job may use several pools; empty: `apart`."""
Stack = Annotated[str, Field(json_schema_extra=one_of("StackName", ("", *sorted(STACKS))))]
"""A profile of software; empty: that of the framework."""
Allowance = Annotated[str, Field(json_schema_extra=one_of("Allowance", ALLOWANCES))]
"""What is left out of a search unless it is allowed."""
Factor = Annotated[float, Field(json_schema_extra={"minimum": 0})]
"""A number that is refused below 0 where it is read, in words of its own."""


def override_pairs(overrides: Any) -> Any:
    """Return fields to change as a search keeps them, where they come by path as in JSON."""
    if not isinstance(overrides, Mapping):
        return overrides
    return tuple(
        (path.strip(), str(value).lower() if isinstance(value, bool) else value)
        for path, value in overrides.items()
    )


def _field(keyword: str, default: Any) -> Any:
    return Field(default, description=SEARCH_FIELDS[keyword].meaning)


class SolveRequest(BaseModel):
    """What a search is told besides its model and its cluster; what is empty is left open.

    Values of axes may be given as users write them (`{"recompute": "full"}`, `{"sp": True}`); they
    are kept as the search has them, numbers. Raises `UsageError` for one that does not exist.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    pins: Annotated[
        Mapping[str, int],
        BeforeValidator(pin_codes, json_schema_input_type=dict[str, FieldValue]),
    ] = _field("pins", {})
    only: Annotated[
        Mapping[str, frozenset[int]],
        BeforeValidator(list_codes, json_schema_input_type=dict[str, list[FieldValue]]),
    ] = _field("only", {})
    at_most: Annotated[
        Mapping[str, int], BeforeValidator(limit_codes, json_schema_input_type=dict[str, int])
    ] = _field("at_most", {})
    framework: Framework = _field("framework", "")
    stack: Stack = _field("stack", "")
    allow: tuple[Allowance, ...] = _field("allow", ())
    overrides: Annotated[
        Overrides, BeforeValidator(override_pairs, json_schema_input_type=dict[str, FieldValue])
    ] = _field("overrides", ())
    pool: str = _field("pool", "")
    pools: Pools = _field("pools", "")
    objective: Objective = _field("objective", "")
    within: Factor = _field("within", 0.0)
    memory_margin: Factor | None = _field("memory_margin", None)
    deadline: str | float = _field("deadline", "")
    budget: str | float = _field("budget", "")
    step_limit_s: Factor = _field("step_limit_s", 0.0)
    pareto: Annotated[
        tuple[str, ...], BeforeValidator(parse_pareto, json_schema_input_type=list[FrontAxis])
    ] = _field("pareto", ())
    time_limit_s: float = _field("time_limit_s", 0.0)
    top: Annotated[int, Field(json_schema_extra={"minimum": 1})] | None = _field("top", None)
    all_variants: bool = _field("all_variants", False)
    calibration: Any = _field("calibration", None)
    """One of `Calibrations`."""
    reference: Any = _field("reference", "")
    """A `planner.solver.calibration.reference.Reference`."""

    @classmethod
    def of(cls, **fields: Any) -> "SolveRequest":
        """Return a request; None and what is left out are its defaults, `UsageError` if wrong."""
        try:
            return cls(**{name: value for name, value in fields.items() if value is not None})
        except ValidationError as error:
            wrong = error.errors()[0]
            name = str(wrong["loc"][0])
            message = f"{name}: {wrong['msg']}, not {wrong['input']!r}"
            meaning = SEARCH_FIELDS[name].meaning if name in SEARCH_FIELDS else ""
            raise UsageError(message, meaning, name, "bad-value") from None

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> "SolveRequest":
        """Return the request whose fields are called as in requests of a service."""
        values = {
            x.keyword: fields[x.field_name]
            for x in SEARCH_FIELDS.values()
            if x.field_name in fields
        }
        return cls.of(**values)

    @classmethod
    def of_section(cls, section: SearchSpec | None) -> "SolveRequest":
        """Return what the `search:` section of a file says, which is checked."""
        values = section.model_dump(exclude_defaults=True) if section else {}
        return cls(
            **{
                field.keyword: values[field.section]
                for field in SEARCH_FIELDS.values()
                if field.section in values
            }
        )

    def over(self, other: "SolveRequest") -> "SolveRequest":
        """Return the request with what it leaves open taken from another one.

        An axis that is pinned, listed or bounded takes nothing from there; neither do objective
        and front, which exclude each other, nor one pool and several.
        """
        taken = {*self.pins, *self.only, *self.at_most}
        update: dict[str, Any] = {}
        for name in ("pins", "only", "at_most"):
            more = {axis: x for axis, x in getattr(other, name).items() if axis not in taken}
            update[name] = {**more, **getattr(self, name)}
        goal = ("objective", "pareto", "within") if self.objective or self.pareto else ()
        closed = (*goal, *(("pool", "pools") if self.pool or self.pools else ()))
        for name in SEARCH_FIELDS.keys() - update.keys() - set(closed):
            if not _is_given(name, getattr(self, name)) and _is_given(name, getattr(other, name)):
                update[name] = getattr(other, name)
        return self.model_copy(update=update)

    def without_goals(self) -> "SolveRequest":
        """Return the request with what is wanted of the plans left open."""
        return self.model_copy(
            update={name: type(self).model_fields[name].default for name in GOALS}
        )

    def options(self, default_top: int = 10) -> SolveOptions:
        """Return the options that it makes, checked; `UsageError` for a bad one."""
        top = default_top if self.top is None else self.top
        if top < 1:
            message = option("top") + f" must be at least 1, not {top}"
            raise UsageError(message, "for example " + option("top", "5"), code="out-of-range")
        framework = named_space(self.framework or "default")
        if self.stack and self.stack not in STACKS:
            choices = f"one of {', '.join(sorted(STACKS))}"
            raise UsageError(f"unknown stack {self.stack!r}", choices, "stack", "unknown-name")
        for name in self.allow:
            if name not in ALLOWANCES:
                message = option("allow") + f": unknown {name!r}"
                raise UsageError(message, f"one of {', '.join(ALLOWANCES)}", code="unknown-name")
        options = SolveOptions(
            top=top,
            pools=parse_pools(self.pools, self.pool),
            all_variants=self.all_variants,
            pins=self.pins,
            only=self.only,
            at_most=self.at_most,
            framework=framework,
            stack=self.stack,
            allow=frozenset(self.allow),
            own_calibration=own_calibration(self.calibration),
            memory_margin=parse_memory_margin(self.memory_margin),
            budget_usd=None if self.budget in ("", None) else parse_budget(self.budget),
            **parse_goals(
                self.objective, self.within, self.deadline, self.step_limit_s, self.pareto
            ),
        )
        options.check_bounds()
        return options

    def anchored_options(self, default_top: int = 10) -> tuple[SolveOptions, tuple[str, ...]]:
        """Return the options, anchored by measured runs if there are any, and notes on them."""
        return anchored_options(self.options(default_top), self.reference)

    def to_json(self) -> dict[str, Any]:
        """Return it as requests of a service hold it, what is empty and documents left out."""
        fields = {x.keyword: x.field_name for x in SEARCH_FIELDS.values()}
        del fields["calibration"], fields["reference"]
        return self._written(fields)

    def to_section(self) -> dict[str, Any]:
        """Return it as a `search:` section holds it, what is empty left out."""
        return self._written({x.keyword: x.section for x in SEARCH_FIELDS.values() if x.section})

    def _written(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return its fields as users write them, under other names; what is empty left out."""
        values = {
            "pins": {axis: axis_value(axis, code) for axis, code in self.pins.items()},
            "only": {
                axis: [axis_value(axis, code) for code in sorted(codes)]
                for axis, codes in self.only.items()
            },
            "at_most": dict(self.at_most),
            "overrides": dict(self.overrides),
        }
        out = {name: values.get(key, getattr(self, key)) for key, name in names.items()}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in out.items()
            if _is_given(name, value)
        }


def _is_given(name: str, value: object) -> bool:
    """Tell whether a field says something; a number that may be 0 does unless it is None."""
    return value is not None if name in ("top", "memory_margin") else bool(value)


def anchored_options(
    options: SolveOptions, reference: Reference
) -> tuple[SolveOptions, tuple[str, ...]]:
    """Return options that measured runs anchor, if there are any, and notes on them."""
    return with_reference(options, reference) if reference else (options, ())


def own_calibration(calibration: Calibrations) -> Calibration | None:
    """Return the calibration that prices plans; None for the one that ships."""
    if isinstance(calibration, Calibration):
        return calibration
    return load_calibration(calibration) if calibration else None
