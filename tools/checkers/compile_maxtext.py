"""Compile the step of one MaxText YAML for TPUs that are not there; runs in MaxText's own Python.

    python compile_maxtext.py FILE.yml compile_topology=v6e-8 key=value ...

What libtpu logs of its buffers is read from its output by tools/maxtext_memory/compiled.py, which
ends the process once memory is laid out: no code is made.
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

from maxtext.trainers.pre_train import train_compile

if __name__ == "__main__":
    train_compile.main(["", *sys.argv[1:]])
