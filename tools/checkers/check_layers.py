"""Holds our kinds of layers against transformers and Megatron-Core: a line a figure.

    python tools/checkers/check_layers.py MEGATRON_FOLDER

In an environment with torch (CPU), transformers and this project. Exit code 1 when a figure is
outside its limit.
"""

import sys
from pathlib import Path

import layer_flops
from transformers import logging


def main(megatron: Path) -> int:
    """Print all figures; return the exit code."""
    logging.set_verbosity_error()  # no kernels here
    print(f"{'kind':34} {'what':12} {'ours':>14} {'theirs':>14}  {'off':>8}  limit")
    n_wrong = 0
    for x in layer_flops.figures(megatron):
        n_wrong += not x.is_right
        sizes = f"{x.ours:14,.0f} {x.theirs:14,.0f}  {x.off_frac:+8.3%}  {x.limit_frac:.2%}"
        print(f"{x.kind:34} {x.what:12} {sizes}{'' if x.is_right else '  WRONG'}", flush=True)
    print(f"{n_wrong} outside their limits")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
