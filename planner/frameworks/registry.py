"""The records of all frameworks: those of the folders here, and those of other packages."""

from dataclasses import replace
from functools import cache
from importlib import import_module

from planner.errors import UsageError
from planner.frameworks.framework import Framework
from searches.frameworks.registry import (
    ANY,
    DEFAULT,
    framework_key,
    framework_names,
    framework_rules,
    framework_space,
    framework_spaces,
    registered_frameworks,
    searched_frameworks,
)
from searches.frameworks.releases import UnknownReleaseError

_USUAL_STACK = "megatron-core"
"""Profile that prices the plans of no single framework."""


def framework(key: str) -> Framework:
    """Return the record of a framework, at the release that its key names if it names one.

    `UsageError` for an unknown one.
    """
    rules = framework_rules(named_framework(key))
    own = registered_frameworks().get(rules.name)
    record = _built_in(rules.name) if own is None else own
    return replace(record, rules=rules) if rules.is_pinned else record


@cache
def _built_in(name: str) -> Framework:
    record: Framework = import_module(f"planner.frameworks.{name}").FRAMEWORK
    return record


def frameworks() -> tuple[Framework, ...]:
    """Return the records of all frameworks."""
    return tuple(framework(name) for name in framework_names())


def named_framework(text: str, field: str = "") -> str:
    """Return the key of a framework as users write it: `megatron`, `megatron@0.17`.

    `UsageError`, for a field of a request, where there is no such framework or release of it.
    """
    try:
        return framework_key(text)
    except UnknownReleaseError as error:
        raise UsageError(error.message, error.hint, field, code="unknown-name") from None
    except KeyError:
        fix = f"one of {', '.join(framework_names())}"
        raise UsageError(f"unknown framework {text!r}", fix, field, code="unknown-name") from None


def named_space(text: str, field: str = "framework") -> str:
    """Return what a search is restricted to: `default`, `any`, or the key of a framework.

    Errors as `named_framework`.
    """
    try:
        return framework_space(text)
    except UnknownReleaseError as error:
        raise UsageError(error.message, error.hint, field, code="unknown-name") from None
    except KeyError:
        fix = f"one of {', '.join(framework_spaces())}"
        raise UsageError(f"unknown framework {text!r}", fix, field, code="unknown-name") from None


def default_stack(space: str, vendor: str = "") -> str:
    """Return the profile that prices plans of `default`, `any` or a framework.

    Of `default` and `any` that of the first framework that `default` searches on accelerators of
    `vendor`.
    """
    if space not in (DEFAULT, ANY):
        return framework(space).stack
    return framework(searched_frameworks(DEFAULT, vendor)[0]).stack if vendor else _USUAL_STACK


def own_stacks() -> frozenset[str]:
    """Return the profiles that frameworks are priced with unless another is named."""
    return frozenset((_USUAL_STACK, *(one.stack for one in frameworks())))
