"""What transformers computes mixers with: kernels of other packages, or PyTorch alone.

Sources: transformers 5.23, models/*/modeling_*.py and integrations/hub_kernels.py
(`use_kernel_func_from_hub_with_fallback`: without a package it runs in PyTorch, in silence).
"""

import textwrap
from collections.abc import Mapping

from costmodels.layers.kinds import mixers_of
from costmodels.shapes import ModelShape
from planner.frameworks.hf_kinds import sees_both_sides

STATE_SPACE = ("mamba-ssm", "causal-conv1d")
DELTA_RULE = ("flash-linear-attention", "causal-conv1d")
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "mamba1": STATE_SPACE,
    "mamba2": STATE_SPACE,
    "gdn": DELTA_RULE,
    "kda": DELTA_RULE,
    "conv": ("causal-conv1d",),
}
"""Packages whose kernels are priced, by mixer."""
WITHOUT_KERNEL: Mapping[str, str] = {
    "linear": "a loop over the blocks of a sequence",
    "sparse": "all scores, of which a mask keeps the chosen keys",
    **dict.fromkeys(
        ("shared-window", "csa", "hca"),
        "all scores, of which a mask keeps the window and the entries that are seen",
    ),
}
"""What runs in PyTorch whatever is installed, by mixer."""


def kernel_packages(shape: ModelShape) -> tuple[str, ...]:
    """Return the packages whose kernels the mixers of a model are priced with."""
    names = [name for mixer in mixers_of(shape) for name in PACKAGES.get(mixer.name, ())]
    return tuple(dict.fromkeys(names))


def kernel_notes(shape: ModelShape, width: int = 96) -> list[str]:
    """Return what a launcher says of kernels and of hidden tokens, in lines of at most `width`."""
    texts = []
    if names := kernel_packages(shape):
        texts.append(
            f"Install {' and '.join(names)}: the plan counts their kernels. Without them"
            " transformers runs in plain PyTorch, slower and with more memory."
        )
    texts += [
        f"transformers has no kernel for layers with {mixer.title}: it computes"
        f" {WITHOUT_KERNEL[mixer.name]}. The plan counts a kernel: expect more time and memory."
        for mixer in mixers_of(shape)
        if mixer.name in WITHOUT_KERNEL
    ]
    if sees_both_sides(shape):
        texts.append(
            "An encoder guesses hidden tokens: --mask-share says how many. A flat file of tokens"
            " needs --mask-token, the id that hides them."
        )
    wrapped = [textwrap.wrap(x, width, break_on_hyphens=False) for x in texts]
    return [line for lines in wrapped for line in lines]


def lacking_images(shape: ModelShape) -> str:
    """Return what of a model the training programs cannot do, or ''; a script of yours may."""
    return "images" if shape.vision is not None else ""
