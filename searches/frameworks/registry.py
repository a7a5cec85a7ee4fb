"""Which training frameworks there are, and where the rules of each stand.

Frameworks of this repository have a record in `BUILT_IN`. Another package adds one through the
entry point group `planner.frameworks`: an object (`planner.frameworks.framework.Framework`) whose
`rules` is a `FrameworkRules`. Rules are imported when they are first asked for.

A framework goes by its key: its name, or its name and one release (`megatron@0.17.0`). What users
write (`megatron@0.17`, `bridge@26.06`) becomes a key where it comes in (`framework_key`,
`framework_space`); from there on it stays the same, and `framework_rules` returns what it names.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from costmodels.shapes import DENSE, MOE
from searches.frameworks.megatron.axis_flags import AXIS_FLAGS
from searches.frameworks.releases import (
    SEPARATOR,
    Release,
    UnknownReleaseError,
    newest_named,
    version_key,
)

GROUP = "planner.frameworks"
"""Entry points of frameworks that other packages bring along."""
MODE_SWITCHES = ("dispatcher", "ep_overlap", "cuda_graph", "offload_modules")
"""Axes that Megatron-Core's files carry by flags of several names."""
VISION_TOWER, RESIDUAL_STREAMS = "vision tower", "residual streams"
HEAD_LAYER = "layer before the head"
"""What stands among the kinds of layers of a framework whose files can say models with one."""
DEFAULT, ANY = "default", "any"
"""Spaces of no single framework: what one of the usual ones runs, and all plans."""
GPU_VENDORS = ("NVIDIA", "AMD")
"""Whose accelerators the frameworks of PyTorch run on."""


@dataclass(frozen=True, slots=True)
class FrameworkRules:
    """What the search must know of a framework."""

    name: str
    """As `--framework` takes it."""
    title: str
    release: str
    """The release that plans are written for: the newest that is known, asked by
    scripts/check_frameworks, or the one that the key names."""
    rules: tuple[str, ...] = ()
    """Where its rules stand, `module:attribute`, each a sequence of `FrameworkRule`."""
    in_default: bool = False
    """Whether `default` searches its plans."""
    switches: tuple[str, ...] = ()
    """Axes of `Layout.switches` that its files carry; plans that use others are not its own."""
    layer_kinds: tuple[str, ...] = (DENSE, MOE)
    """Kinds of layers that its files can say, beside those whose own record names it
    (`LayerKind.frameworks`); it refuses models that have others."""
    adapter_bases: tuple[str, ...] = ()
    """How frozen weights may be held where it trains adapters (`costmodels.tuning.records.BASES`);
    none: it trains no adapters."""
    has_preferences: bool = False
    """Whether a frozen reference can run beside the model (DPO)."""
    releases: tuple[Release, ...] = ()
    """Those whose options are known, the oldest first; none: `release` alone."""
    switch_flags: str = ""
    """Where its switches stand with their flags by release, `module:attribute`
    (`searches.frameworks.switches`)."""
    vendors: tuple[str, ...] = GPU_VENDORS
    """Whose accelerators it runs on (`hardware.parts.Accelerator.vendor`)."""
    deepep_vendors: tuple[str, ...] = ("NVIDIA",)
    """On whose of them its `dispatcher` deepep has kernels, where it carries one."""
    is_pinned: bool = False
    """Whether the release is one that the user named."""

    @property
    def key(self) -> str:
        """What it goes by: its name, with its release where the user named one."""
        return f"{self.name}{SEPARATOR}{self.release}" if self.is_pinned else self.name

    @property
    def known_releases(self) -> tuple[Release, ...]:
        """The releases that can be named, the oldest first."""
        return self.releases or (Release(self.release),)

    def rules_version(self, version: str = "") -> str:
        """Return the version by which `FrameworkRule.versions` is asked, of it or another release.

        A version that is not known counts for itself; where rules go by megatron-core, for the
        newest known release before it.
        """
        version = version or self.release
        for one in self.known_releases:
            if version == one.version or version in one.aliases:
                return one.rules_version
        if not any(one.core for one in self.known_releases):
            return version
        earlier = [
            one for one in self.known_releases if version_key(one.version) <= version_key(version)
        ]
        return (earlier or self.known_releases[:1])[-1].rules_version

    def at(self, asked: str) -> "FrameworkRules":
        """Return the framework at one release; `UnknownReleaseError` where it is not known."""
        newest = newest_named(self.known_releases, asked)
        if newest is None:
            known = [
                " = ".join((one.version, *one.aliases)) for one in reversed(self.known_releases)
            ]
            raise UnknownReleaseError(self.name, self.title, asked, known)
        return replace(self, release=newest.version, is_pinned=True)


_MEGATRON, _DEEPSPEED, _TORCHTITAN = (
    f"searches.frameworks.{name}" for name in ("megatron", "deepspeed", "torchtitan")
)
OWN_VALUES = "value heads of another width than keys"
"""What is refused of a model that has them without latent attention, beside kinds of layers."""
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
                f"{_MEGATRON}.layer_kinds:LAYER_KIND_RULES",
                f"{_MEGATRON}.flags:RULES",
                f"{_MEGATRON}.training_flags:RULES",
                f"{_MEGATRON}.run_flags:RULES",
            ),
            in_default=True,
            switches=(*MODE_SWITCHES, *AXIS_FLAGS),
            releases=(
                Release("0.17.0", "2026-04-16"),
                Release("0.18.2", "2026-07-21"),
                Release("0.19.2", "2026-09-18"),
            ),
            switch_flags=f"{_MEGATRON}.switch_flags:SWITCH_FLAGS",
        ),
        FrameworkRules(
            "deepspeed",
            "DeepSpeed",
            "0.19.8",
            (f"{_DEEPSPEED}.layouts:LAYOUT_RULES", f"{_DEEPSPEED}.keys:RULES"),
            in_default=True,
            layer_kinds=(DENSE, MOE, VISION_TOWER, HEAD_LAYER),
            adapter_bases=("bf16", "nf4", "nf4-plain"),
            has_preferences=True,
            releases=(Release("0.18.9"), Release("0.19.8")),
        ),
        FrameworkRules(
            "torchtitan",
            "torchtitan",
            "0.3.0",
            (f"{_TORCHTITAN}.layouts:LAYOUT_RULES", f"{_TORCHTITAN}.fields:RULES"),
            releases=(Release("0.2.2", "2026-02-20"), Release("0.3.0", "2026-09-03")),
        ),
        FrameworkRules(
            "fsdp2",
            "Accelerate (FSDP2)",
            "1.15.0",
            ("searches.frameworks.fsdp2:RULES",),
            layer_kinds=(DENSE, MOE, VISION_TOWER, HEAD_LAYER, OWN_VALUES),
            adapter_bases=("bf16", "int8", "nf4", "nf4-plain"),
            has_preferences=True,
            releases=(Release("1.12.0", "2025-11-21"), Release("1.15.0", "2026-09-09")),
        ),
        FrameworkRules(
            "bridge",
            "Megatron-Bridge",
            "0.6.2",
            ("searches.frameworks.bridge:RULES",),
            switches=MODE_SWITCHES,
            adapter_bases=("bf16",),
            releases=(
                Release("0.5.1", "2026-07-21", core="0.18.2", aliases=("26.06",)),
                Release("0.6.2", "2026-09-18", core="0.19.2", aliases=("26.08",)),
            ),
            switch_flags=f"{_MEGATRON}.switch_flags:SWITCH_FLAGS",
        ),
        FrameworkRules(
            "primus",
            "Primus",
            "26.5.1",
            ("searches.frameworks.primus:RULES",),
            switches=("dispatcher", "ep_overlap"),
            # Its Megatron-LM is a commit of 2026-03-06, weeks before 0.17.0.
            releases=(Release("26.5.1", "2026-07-23", core="0.17.0"),),
            switch_flags=f"{_MEGATRON}.switch_flags:SWITCH_FLAGS",
            vendors=("AMD",),
            deepep_vendors=("AMD",),
        ),
        FrameworkRules(
            "maxtext",
            "MaxText",
            "0.2.5",
            ("searches.frameworks.maxtext:RULES",),
            in_default=True,
            releases=(Release("0.2.5"),),
            vendors=("Google",),
        ),
        FrameworkRules(
            "mindspeed",
            "MindSpeed-LLM",
            "26.1.0",
            (
                "searches.frameworks.mindspeed.layouts:RULES",
                "searches.frameworks.mindspeed.options:RULES",
            ),
            in_default=True,
            switches=("dispatcher",),
            # All run megatron-core 0.12.1; rules go by their own versions.
            releases=(
                Release("2.2.0", "2025-10-28"),
                Release("2.3.0", "2026-01-13"),
                Release("26.0.0", "2026-04-28"),
                Release("26.1.0", "2026-08-04"),
            ),
            vendors=("Huawei",),
        ),
        FrameworkRules(
            "automodel",
            "NeMo AutoModel",
            "0.7.0",
            (
                "searches.frameworks.automodel.layouts:LAYOUT_RULES",
                "searches.frameworks.automodel.keys:RULES",
            ),
            switches=("dispatcher",),
            releases=(Release("0.7.0"),),
            vendors=("NVIDIA",),
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


def older_releases() -> tuple[str, ...]:
    """Return the keys of all releases but the newest of each framework."""
    records = _by_name().values()
    return tuple(one.at(x.version).key for one in records for x in one.known_releases[:-1])


def framework_rules(key: str) -> FrameworkRules:
    """Return the record of a framework, at the release that the key names if it names one.

    `KeyError` for an unknown framework, `UnknownReleaseError` for an unknown release of one.
    """
    return _by_name()[key] if key in _by_name() else _at_release(key)


@cache
def _at_release(key: str) -> FrameworkRules:
    name, _, release = key.partition(SEPARATOR)
    return _by_name()[name].at(release)


def framework_key(text: str) -> str:
    """Return the key of a framework as users write it; errors as `framework_rules`.

    >>> framework_key("megatron@0.17"), framework_key("bridge@26.06"), framework_key("deepspeed")
    ('megatron@0.17.0', 'bridge@0.5.1', 'deepspeed')
    """
    name, at, release = text.partition(SEPARATOR)
    name, release = name.strip(), release.strip()
    return framework_rules(f"{name}{at}{release}").key


def framework_space(text: str) -> str:
    """Return the key of what a search can be restricted to: `default`, `any`, a framework."""
    return text if text in (DEFAULT, ANY) else framework_key(text)


def keys_of(key: str) -> tuple[str, ...]:
    """Return the names of all frameworks, that of a key with its release in place of its own."""
    name = key.partition(SEPARATOR)[0]
    return tuple(key if one == name else one for one in framework_names())


def searched_frameworks(framework: str, vendor: str = "") -> tuple[str, ...]:
    """Return the keys of the frameworks whose plans a search for `framework` offers.

    `default` is those of the `vendor` of the accelerators; where it has none of its own, or is not
    given, those of GPUs.
    """
    if framework != DEFAULT:
        return (framework,)
    return _usual_frameworks(vendor) or _usual_frameworks(GPU_VENDORS[0])


def _usual_frameworks(vendor: str) -> tuple[str, ...]:
    records = _by_name().items()
    return tuple(name for name, one in records if one.in_default and vendor in one.vendors)


def load(path: str) -> Any:
    """Return what stands at `module:attribute`."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def refresh() -> None:
    """Look for entry points again: a package was installed, or a test adds one."""
    registered_frameworks.cache_clear()
    _by_name.cache_clear()
    _at_release.cache_clear()
