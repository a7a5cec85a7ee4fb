"""What may stand in a sweep file: sections, defaults, and what excludes what."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from planner.errors import BadValue
from planner.specs.schema import Name, SearchSpec, _one_of, _Spec, _whole
from planner.sweeps.designs import DESIGNS, MAX_POINTS
from planner.units import shown_value


def _source(value: object) -> object:
    if isinstance(value, str | Mapping):
        return value
    raise BadValue(
        f"expected a file, an example by name, or the file's content, got {shown_value(value)}"
    )


def _listed(value: object) -> object:
    """Accept one item in place of a list."""
    return value if isinstance(value, list) or value is None else [value]


def _mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return value
    raise BadValue(
        f"expected a mapping of fields, got {shown_value(value)}", "such as pools.0.nodes: 32"
    )


Source = Annotated[Any, BeforeValidator(_source)]
Fields = Annotated[dict[str, Any], BeforeValidator(_mapping)]
Samples = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MAX_POINTS)]
Seed = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=2**32 - 1)]


class FamilySpec(_Spec):
    """The `family:` section: models of one family, in place of `model:`."""

    models: list[Source] = Field(min_length=1)
    """Two or more model files or examples, such as `[llama3-8b, llama3-70b, llama3-405b]`."""


class SweepFile(_Spec):
    """A sweep file."""

    name: Name | None = None
    """Name in tables; default: the name of the file."""
    model: Source | None = None
    """Model file, example by name, or the content of a model file."""
    cluster: Source | None = None
    """Cluster file, example by name, or the content of a cluster file."""
    set: Fields = Field(default_factory=dict)
    """Fields that are the same for all points: `training.tokens: 15e12`."""
    design: Annotated[str, BeforeValidator(_one_of(*DESIGNS))] | None = None
    """`grid`: every combination; `latin`: a Latin hypercube; `list`: the points of `points:`."""
    samples: Samples | None = None
    """Points of a Latin hypercube."""
    seed: Seed = 0
    """Of the random numbers of a Latin hypercube."""
    vary: Fields = Field(default_factory=dict)
    """Values by field: a list, or a range such as `80 GiB .. 320 GiB * 2`."""
    together: Fields = Field(default_factory=dict)
    """Fields that change as one: a name, under it values by name, under each its fields."""
    points: list[Fields] | None = None
    """Points spelled out, for `design: list`: the values of each by field."""
    family: FamilySpec | None = None
    """Models between and beyond which `model.params` makes models of any size."""
    let: Fields = Field(default_factory=dict)
    """Derived values by name: an expression, or a table `{by: FIELD, value: number}`."""
    where: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list)
    """Expressions that hold for every point of the sweep."""
    notes: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list)
    """Sentences for the reader of a report: where prices come from, what was assumed."""
    search: SearchSpec | None = None
    """What to search for, as in a model file; over the model file's own."""
    stack: str = ""
    """As `--stack`: software profile to price with."""
    calibration: str = ""
    """As `--calibration`: file of the numbers to price with."""
    reference: str = ""
    """As `--reference`: file of measured runs that set the scale."""
