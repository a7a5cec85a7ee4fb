"""What devices are called, by who makes them."""

import pytest

from hardware.catalogue import load_catalogue
from hardware.nouns import DEVICE, GPU, NOUNS, common_noun, vendor_noun


def test_every_vendor_of_the_catalogue_has_a_noun() -> None:
    vendors = {part.vendor for part in load_catalogue().accelerators.values()}
    assert vendors == set(NOUNS)


@pytest.mark.parametrize(
    ("part", "one", "many"),
    [
        ("h100-sxm-80gb", "GPU", "GPUs"),
        ("mi300x-192gb", "GPU", "GPUs"),
        ("tpu-v5p", "TPU chip", "TPU chips"),
        ("ascend-910b-64gb", "NPU", "NPUs"),
    ],
)
def test_a_part_knows_what_it_is_called(part: str, one: str, many: str) -> None:
    noun = load_catalogue().accelerator(part).noun
    assert (noun.one, noun.many) == (one, many)


def test_unlike_devices_are_devices() -> None:
    assert common_noun([NOUNS["AMD"], NOUNS["NVIDIA"]]) == GPU
    assert common_noun([GPU, NOUNS["Google"]]) == DEVICE
    assert common_noun([]) == DEVICE
    assert vendor_noun("of nobody") == DEVICE
