"""What people call a device, by who makes it: GPU, TPU chip, NPU."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceNoun:
    """What a device is called in sentences and in heads of columns."""

    one: str
    short: str
    """Of columns: the last word where there are two."""

    @property
    def many(self) -> str:
        """Several of them."""
        return f"{self.one}s"


DEVICE = DeviceNoun("device", "device")
"""Of unlike devices, and of those whose maker is not known."""
NOUNS: Mapping[str, DeviceNoun] = {
    "NVIDIA": DeviceNoun("GPU", "GPU"),
    "AMD": DeviceNoun("GPU", "GPU"),
    "Google": DeviceNoun("TPU chip", "chip"),
    "Huawei": DeviceNoun("NPU", "NPU"),
    "AWS": DeviceNoun("Trainium chip", "chip"),
    "Intel": DeviceNoun("HPU", "HPU"),
}
"""By vendor: the makers' own words (Intel's Gaudi is an HPU in its software)."""
GPU = NOUNS["NVIDIA"]
TPU_DIE = DeviceNoun("TPU chiplet", "chiplet")
"""Of TPUs whose chips are several devices."""


def vendor_noun(vendor: str) -> DeviceNoun:
    """Return what devices of a vendor are called; `DEVICE` of one that is not known."""
    return NOUNS.get(vendor, DEVICE)


def common_noun(nouns: Iterable[DeviceNoun]) -> DeviceNoun:
    """Return the noun of devices that share one, else `DEVICE`.

    >>> common_noun([NOUNS["AMD"], NOUNS["NVIDIA"]]).many, common_noun(NOUNS.values()).many
    ('GPUs', 'devices')
    """
    found = set(nouns)
    return found.pop() if len(found) == 1 else DEVICE
