"""What drivers and schedulers call accelerators: `hardware/data/device_names.yaml`, typed.

A family name such as "A100" stands for several forms with different memory and links; every form
sold is listed, those that the catalogue does not hold too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hardware._reader import CatalogueError
from hardware._units import parse_quantity
from hardware.catalogue import load_catalogue

_FILE = Path(__file__).parent / "data" / "device_names.yaml"
_MAKERS = re.compile(r"^(?:nvidia|tesla|amd|instinct|geforce(?=-rtx-pro))-")
_TAILS = re.compile(r"-(?:oam|vf|hf)$")


@dataclass(frozen=True, slots=True)
class DeviceForm:
    """One form in which an accelerator is sold."""

    family: str
    """The name without form and memory: `h100`."""
    form: str
    """`sxm`, `pcie`, `nvl`, `superchip` or `oam`."""
    part: str
    """Catalogue name; empty when the catalogue does not hold this form."""
    names: tuple[str, ...]
    """What the driver calls it, in the form of `plain_name`."""
    memory_bytes: float
    """What the driver reports; 0 where unknown."""
    n_nvlinks: int
    """NVLinks of one device; of cards only with a bridge."""
    pci_ids: tuple[str, ...]
    """PCI device ids, four hexadecimal digits."""
    capability: str
    """Compute capability (`9.0`), or the graphics version of AMD (`gfx942`)."""
    custom: bool
    """Made for one buyer."""


@dataclass(frozen=True, slots=True)
class DeviceNames:
    """All forms, and the words of accelerators that the catalogue does not hold."""

    forms: tuple[DeviceForm, ...]
    elsewhere: frozenset[str]

    def family(self, name: str) -> tuple[DeviceForm, ...]:
        """Return the forms of a family, in the order of the file."""
        return tuple(form for form in self.forms if form.family == name)


def plain_name(text: str) -> str:
    """Return a device name in lower case with dashes, without the maker.

    >>> plain_name("NVIDIA H100 80GB HBM3"), plain_name("AMD_Instinct_MI300X_OAM")
    ('h100-80gb-hbm3', 'mi300x')
    """
    name = re.sub(r"[\s_/]+", "-", text.strip().lower()).strip("-")
    while (shorter := _MAKERS.sub("", name)) != name:
        name = shorter
    return _TAILS.sub("", name)


@cache
def load_device_names() -> DeviceNames:
    """Read the file that is installed with the package."""
    import yaml  # 20 ms, and only importers need it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content: Mapping[str, Any] = yaml.load(_FILE.read_text(encoding="utf-8"), loader)
    parts = load_catalogue().accelerators
    forms = []
    for family, entry in content.items():
        for raw in entry.get("forms", ()):
            part = raw.get("part", "")
            if part and part not in parts:
                raise CatalogueError(f"device names, {family}: {part!r} is no accelerator")
            memory = parse_quantity(raw["memory"], "bytes") if "memory" in raw else 0.0
            forms.append(
                DeviceForm(
                    family=family,
                    form=raw["form"],
                    part=part,
                    names=tuple(plain_name(name) for name in raw["names"]),
                    memory_bytes=memory or (parts[part].memory_bytes if part else 0.0),
                    n_nvlinks=raw.get("nvlinks", 0),
                    pci_ids=tuple(str(i) for i in raw.get("pci", ())),
                    capability=entry["capability"],
                    custom=raw.get("custom", False),
                )
            )
    return DeviceNames(tuple(forms), frozenset(content["elsewhere"]["words"]))
