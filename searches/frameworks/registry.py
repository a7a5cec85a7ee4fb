"""Which training frameworks there are, and where the rules of each stand.

Frameworks of this repository have a record in `BUILT_IN`. Another package adds one through the
entry point group `planner.frameworks`: an object (`planner.frameworks.framework.Framework`) whose
`rules` is a `FrameworkRules`. Rules are imported when they are first asked for.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from costmodels.shapes import DENSE, MOE
from searches.frameworks.megatron.axis_flags import AXIS_FLAGS

GROUP = "planner.frameworks"
"""Entry points of frameworks that other packages bring along."""
MODE_SWITCHES = ("dispatcher", "ep_overlap", "cuda_graph")
"""Axes that Megatron-Core's files carry by flags of several names."""
DEFAULT, ANY = "default", "any"
"""Spaces of no single framework: what one of the usual ones runs, and all plans."""


@dataclass(frozen=True, slots=True)
class FrameworkRules:
    """What the search must know of a framework."""

    name: str
    """As `--framework` takes it."""
    title: str
    release: str
    """The release that plans are written for, asked by scripts/check_frameworks."""
    rules: tuple[str, ...] = ()
    """Where its rules stand, `module:attribute`, each a sequence of `FrameworkRule`."""
    in_default: bool = False
    """Whether `default` searches its plans."""
    switches: tuple[str, ...] = ()
    """Axes of `Layout.switches` that its files carry; plans that use others are not its own."""
    layer_kinds: tuple[str, ...] = (DENSE, MOE)
    """Kinds of layers that its files can say, beside those whose own record names it
    (`LayerKind.frameworks`); it refuses models that have others."""


_MEGATRON, _DEEPSPEED, _TORCHTITAN = (
    f"searches.frameworks.{name}" for name in ("megatron", "deepspeed", "torchtitan")
)
BUILT_IN: Mapping[str, FrameworkRules] = {
    record.name: record
    for record in (
        FrameworkRules(
            "megatron",
            "Megatron-LM",
            "0.19.2",
            (
                f"{_MEGATRON}.layouts:LAYOUT_RULES",
                f"{_MEGATRON}.modes:MODE_LAYOUT_RULES",
                f"{_MEGATRON}.flags:RULES",
                f"{_MEGATRON}.training_flags:RULES",
                f"{_MEGATRON}.run_flags:RULES",
            ),
            in_default=True,
            switches=(*MODE_SWITCHES, *AXIS_FLAGS),
        ),
        FrameworkRules(
            "deepspeed",
            "DeepSpeed",
            "0.19.8",
            (f"{_DEEPSPEED}.layouts:LAYOUT_RULES", f"{_DEEPSPEED}.keys:RULES"),
            in_default=True,
        ),
        FrameworkRules(
            "torchtitan",
            "torchtitan",
            "0.3.0",
            (f"{_TORCHTITAN}.layouts:LAYOUT_RULES", f"{_TORCHTITAN}.fields:RULES"),
        ),
        FrameworkRules(
            "fsdp2", "Accelerate (FSDP2)", "1.15.0", ("searches.frameworks.fsdp2:RULES",)
        ),
        FrameworkRules(
            "bridge",
            "Megatron-Bridge",
            "0.6.2",
            ("searches.frameworks.bridge:RULES",),
            switches=MODE_SWITCHES,
        ),
    )
}
"""Frameworks of this repository, in the order in which they are named."""


@cache
def registered_frameworks() -> Mapping[str, Any]:
    """Return the objects that other packages register, by name.

    One that cannot be loaded, or whose name is taken, is left out with a warning.
    """
    taken = {DEFAULT, ANY, *BUILT_IN}
    frameworks: dict[str, Any] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda x: (x.name, x.value)):
        try:
            framework = point.load()
            name = framework.rules.name
        except Exception as error:  # whatever a strange package raises
            warnings.warn(f"framework {point.name} ({point.value}): {error}", stacklevel=2)
            continue
        if name in taken:
            warnings.warn(f"{point.value}: there is a framework {name!r} already", stacklevel=2)
            continue
        taken.add(name)
        frameworks[name] = framework
    return MappingProxyType(frameworks)


@cache
def _by_name() -> Mapping[str, FrameworkRules]:
    return {**BUILT_IN, **{name: one.rules for name, one in registered_frameworks().items()}}


def framework_names() -> tuple[str, ...]:
    """Return the names of all frameworks, those of this repository first."""
    return tuple(_by_name())


def framework_spaces() -> tuple[str, ...]:
    """Return what a search can be restricted to: `default`, a framework, `any`."""
    return (DEFAULT, *framework_names(), ANY)


def framework_rules(name: str) -> FrameworkRules:
    """Return the record of a framework; `KeyError` for an unknown one."""
    return _by_name()[name]


def searched_frameworks(framework: str) -> tuple[str, ...]:
    """Return the frameworks whose plans a search for `framework` offers."""
    if framework != DEFAULT:
        return (framework,)
    return tuple(name for name, record in _by_name().items() if record.in_default)


def load(path: str) -> Any:
    """Return what stands at `module:attribute`."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def refresh() -> None:
    """Look for entry points again: a package was installed, or a test adds one."""
    registered_frameworks.cache_clear()
    _by_name.cache_clear()
