"""The records of all frameworks: those of the folders here, and those of other packages."""

from functools import cache
from importlib import import_module

from planner.errors import UsageError
from planner.frameworks.framework import Framework
from searches.frameworks.registry import ANY, DEFAULT, framework_names, registered_frameworks

_USUAL_STACK = "megatron-core"
"""Profile that prices the plans of no single framework."""


def framework(name: str) -> Framework:
    """Return the record of a framework; `UsageError` for an unknown one."""
    check_framework(name)
    return registered_frameworks()[name] if name in registered_frameworks() else _built_in(name)


@cache
def _built_in(name: str) -> Framework:
    record: Framework = import_module(f"planner.frameworks.{name}").FRAMEWORK
    return record


def frameworks() -> tuple[Framework, ...]:
    """Return the records of all frameworks."""
    return tuple(framework(name) for name in framework_names())


def check_framework(name: str, field: str = "") -> None:
    """Raise `UsageError`, for a field of a request, where there is no framework of that name."""
    if name not in framework_names():
        fix = f"one of {', '.join(framework_names())}"
        raise UsageError(f"unknown framework {name!r}", fix, field, code="unknown-name")


def default_stack(space: str) -> str:
    """Return the profile that prices plans of `default`, `any` or a framework."""
    return _USUAL_STACK if space in (DEFAULT, ANY) else framework(space).stack


def own_stacks() -> frozenset[str]:
    """Return the profiles that frameworks are priced with unless another is named."""
    return frozenset((_USUAL_STACK, *(one.stack for one in frameworks())))
