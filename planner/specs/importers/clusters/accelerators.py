"""Which catalogue accelerator an input means: decided, assumed and said, or left to the user.

A part is decided when the names, memory, links or PCI ids in the input leave one form. A family
name alone ("H100") is assumed to be the only form that the catalogue's servers and cloud machines
hold in nodes of that size; where there are several (A100 with 40 or 80 GB) or none, the user is
asked.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hardware.device_names import DeviceForm, DeviceNames, load_device_names, plain_name
from planner.specs.importers.clusters.facts import Evidence

if TYPE_CHECKING:
    from hardware.catalogue import Catalogue

NONE = "none"
"""Answer that leaves the devices out."""
ALL = "*"
"""Key of an answer for all devices."""
UNNAMED = "gpu"
"""What devices are called that the input gives no name."""
ANY_OF_MAKER = ("cuda", "gfx")
"""In place of a capability: any device of NVIDIA, any of AMD."""
_MEMORY_TOLERANCE = 0.05
"""Drivers report a few per cent less where error correction takes its share."""
_NEAREST = 0.005
"""Of forms within the tolerance those this close to the nearest count."""
_WORD_TOLERANCE = 0.08
"""Between the nominal size in a name (80 GB, 80 GiB) and what the driver reports."""
_GB, _GIB = 1e9, 2.0**30
_BEFORE = r"(?:(?<![a-z0-9])|(?<=dgx)|(?<=hgx))"
_FORM_WORDS = {
    "sxm": re.compile(r"(?<![a-z])sxm[2-9]?(?![a-z])|(?<![a-z])(?:hgx|dgx)|nvswitch"),
    "pcie": re.compile(r"(?<![a-z])pci-?e(?![a-z])"),
    "nvl": re.compile(r"(?<![a-z])nvl(?![a-z0-9])"),
}
_NVLINK = re.compile(r"(?<![a-z])nvlink")
_SIZE = re.compile(r"(?<![0-9a-z.])([0-9]{2,3})(gi?b?)?(?![0-9a-z.])")
_MIG = re.compile(r"(?<![0-9])[1-8]g\.[0-9]+gb")
_VGPU = re.compile(r"^(?:nvidia[ _-])?grid[ _-]|-[0-9]+[qcab]$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Match:
    """What the evidence leaves."""

    part: str = ""
    """Catalogue name; empty when it is not decided."""
    why: str = ""
    """What decided it, or why it is assumed."""
    assumed: bool = False
    candidates: tuple[str, ...] = ()
    """Catalogue names that the evidence leaves, where it is not decided."""
    elsewhere: bool = False
    """A known accelerator that the catalogue does not hold."""
    contradiction: bool = False
    """What the inputs say does not fit together."""


def is_mig(name: str) -> bool:
    """Tell whether a device name is that of a slice of a device: `nvidia_a100_1g.5gb`."""
    return bool(_MIG.search(name.lower()))


def is_vgpu(name: str) -> bool:
    """Tell whether a device name is that of a virtual GPU: `GRID A100-40C`."""
    return bool(_VGPU.search(name.strip()))


def identify(
    evidence: Evidence, n_devices: int, catalogue: "Catalogue", answers: Mapping[str, str]
) -> Match:
    """Return what the evidence about nodes of `n_devices` leaves.

    `answers` are the user's: catalogue names (or `none`) by what the input calls the device.
    """
    if answer := _answer(evidence, answers):
        return Match(answer, "given with --accelerator", elsewhere=answer == NONE)
    names = load_device_names()
    forms, why, sized = _named(evidence, names)
    if forms is None:
        if _is_elsewhere(evidence.name, names):
            return Match(elsewhere=True)
        forms = names.forms
    left = _consistent(forms, evidence, keep_custom=sized or bool(evidence.memory_bytes))
    family = why != ""
    if not family:
        left = _as_seen(left, evidence, n_devices, catalogue)
    if not left and family:
        return Match(contradiction=True, candidates=_parts(forms))
    if len(left) == 1 and (family or _says_more_than_a_generation(evidence)):
        only = left[0]
        return Match(only.part, _reason(why, evidence, left), elsewhere=not only.part)
    if family and len({form.family for form in left}) == 1:
        parts = {
            p.accelerator
            for p in catalogue.platforms.values()
            if p.devices_per_node == n_devices and p.accelerator in _parts(left)
        }
        if len(parts) == 1:
            evidence_text = _reason(why, evidence, left)
            reason = f"{evidence_text}; the form that comes in nodes of {n_devices}"
            return Match(parts.pop(), reason, assumed=True)
    return Match(candidates=_parts(left))


def _answer(evidence: Evidence, answers: Mapping[str, str]) -> str:
    """Return what the user answered for a device, by any way of writing its name."""
    for key in (evidence.name.lower() or UNNAMED, plain_name(evidence.name), ALL):
        if key in answers:
            return answers[key]
    return ""


def _named(
    evidence: Evidence, names: DeviceNames
) -> tuple[tuple[DeviceForm, ...] | None, str, bool]:
    """Return the forms that ids and names leave, where they stand, and whether they say a size.

    None in place of the forms when nothing names any.
    """
    if evidence.pci_id:
        result = tuple(form for form in names.forms if evidence.pci_id in form.pci_ids)
        if result:
            return result, f"PCI device {evidence.pci_id}", True
    plain = plain_name(evidence.name)
    if exact := _exact(plain, names):
        return exact, evidence.name, True
    if family := _family(plain, names):
        for word in evidence.labels:
            if exact := _exact(plain_name(word), names):
                same = exact if exact[0].family == family else ()
                return same, f"{evidence.name}, {word}", True
        forms, sized = _narrowed(names.family(family), plain, evidence.labels)
        return forms, evidence.name, sized
    in_words = {f: w for w in evidence.labels if (f := _family(plain_name(w), names))}
    if len(in_words) != 1 or (plain and _is_elsewhere(evidence.name, names)):
        return None, "", False
    (family, word), *_ = in_words.items()
    if exact := _exact(plain_name(word), names):
        return exact, word, True
    forms, sized = _narrowed(names.family(family), plain, evidence.labels)
    return forms, word, sized


def _exact(plain: str, names: DeviceNames) -> tuple[DeviceForm, ...]:
    """Return the form that has this very name, as the driver or the catalogue writes it."""
    same = (form for form in names.forms if plain in (*form.names, form.part))
    return tuple(same) if plain else ()


def _family(plain: str, names: DeviceNames) -> str:
    """Return the family that a name holds as a word of its own; the longest of several."""
    results = [
        family
        for family in {form.family for form in names.forms}
        if re.search(rf"{_BEFORE}{family}(?=$|[^a-z0-9]|sxm|pcie|nvl)", plain)
    ]
    results = [f for f in results if f"{f}-3e" not in plain]
    return max(results, key=lambda f: (len(f), f)) if results else ""


def _narrowed(
    forms: tuple[DeviceForm, ...], plain: str, labels: Iterable[str]
) -> tuple[tuple[DeviceForm, ...], bool]:
    """Return the forms that the other words leave, and whether the words give a memory size."""
    texts = [plain, *(plain_name(word) for word in labels)]
    kinds = {kind for kind, word in _FORM_WORDS.items() if any(word.search(t) for t in texts)}
    if kinds:
        forms = tuple(form for form in forms if form.form in {*kinds, "superchip"})
    elif any(_NVLINK.search(text) for text in texts):
        forms = tuple(form for form in forms if form.form != "pcie")
    sizes = [int(m[1]) for m in _SIZE.finditer(plain)]
    sizes += [int(m[1]) for word in texts[1:] for m in _SIZE.finditer(word) if m[2]]
    fitting = tuple(f for f in forms if any(_is_size(f.memory_bytes, size) for size in sizes))
    return fitting or forms, bool(fitting)


def _is_size(n_bytes: float, size: int) -> bool:
    low, high = size * _GB * (1 - _WORD_TOLERANCE), size * _GIB * (1 + _WORD_TOLERANCE)
    return low <= n_bytes <= high


def _consistent(
    forms: tuple[DeviceForm, ...], evidence: Evidence, keep_custom: bool
) -> tuple[DeviceForm, ...]:
    """Return the forms whose figures agree with those in the evidence."""
    left = [form for form in forms if _agrees(form, evidence)]
    if evidence.memory_bytes:
        off = [abs(form.memory_bytes / evidence.memory_bytes - 1) for form in left]
        nearest = min(off, default=0.0) + _NEAREST
        left = [form for form, x in zip(left, off, strict=True) if x <= nearest]
    return tuple(form for form in left if keep_custom or not form.custom)


def _agrees(form: DeviceForm, evidence: Evidence) -> bool:
    is_amd = form.capability.startswith("gfx")
    if evidence.capability in ANY_OF_MAKER:
        if is_amd != (evidence.capability == "gfx"):
            return False
    elif evidence.capability and form.capability != evidence.capability:
        return False
    if evidence.memory_bytes:
        off = abs(form.memory_bytes / evidence.memory_bytes - 1)
        if off > _MEMORY_TOLERANCE:
            return False
    if evidence.bridged is not None and evidence.bridged != (form.form in ("pcie", "nvl")):
        return False
    if evidence.n_links == {0}:
        return form.form != "sxm"
    if evidence.n_links:
        return form.n_nvlinks in evidence.n_links
    return True


def _as_seen(
    forms: Iterable[DeviceForm], evidence: Evidence, n_devices: int, catalogue: "Catalogue"
) -> tuple[DeviceForm, ...]:
    """Return the forms that nodes of `n_devices` with such links may hold, the likeliest first.

    For devices that nothing names: superchips share a node with few others, and with NVLink.
    Where no NVLink is seen, devices that have none come first, then cards without their bridges.
    """

    def fits(form: DeviceForm) -> bool:
        if form.form != "superchip":
            return True
        part = catalogue.accelerators.get(form.part)
        maximum = min(part.devices_per_node, part.scale_up_domain) if part else n_devices
        return n_devices <= maximum and not (n_devices > 1 and evidence.n_links == {0})

    left = [form for form in forms if fits(form)]
    if evidence.n_links == {0}:
        left.sort(key=lambda form: (form.n_nvlinks > 0, form.form != "pcie"))
    return tuple(left)


def _says_more_than_a_generation(evidence: Evidence) -> bool:
    """Tell whether figures alone may decide: memory beside links or the capability."""
    has_capability = evidence.capability and evidence.capability not in ANY_OF_MAKER
    return bool(evidence.memory_bytes and (evidence.n_links or has_capability))


def _reason(name: str, evidence: Evidence, left: Iterable[DeviceForm]) -> str:
    """Return the name and the figures that the input gives."""
    parts = [name] if name else []
    if evidence.memory_bytes:
        parts.append(f"{evidence.memory_bytes / 2**20:.0f} MiB")
    n_links = {form.n_nvlinks for form in left} & evidence.n_links - {0}
    if n_links:
        parts.append(f"{max(n_links)} NVLinks")
    if evidence.n_links == {0}:
        parts.append("no NVLink")
    if evidence.capability not in ("", *ANY_OF_MAKER) and not name:
        parts.append(f"compute capability {evidence.capability}")
    return ", ".join(parts)


def _is_elsewhere(name: str, names: DeviceNames) -> bool:
    """Tell whether a name is that of an accelerator which the catalogue does not hold."""
    tokens = set(re.findall(r"[a-z]+[0-9]*[a-z]*|[0-9]+(?:ti|s)?", name.lower()))
    spelled = plain_name(name)
    if re.fullmatch(r"[1-5]0[5-9]0(?:ti|s)?", spelled):  # GeForce cards without their brand
        return True
    return bool(tokens & names.elsewhere) or any(
        re.match(rf"(?:{word})[0-9a-z]*(?:-|$)", spelled)
        for word in ("rtx", "gtx", "geforce", "quadro", "titan", "radeon")
    )


def _parts(forms: Iterable[DeviceForm]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(form.part for form in forms if form.part))
