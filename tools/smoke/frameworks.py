"""The environment in which the launcher of each framework starts."""

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from environments import BRIDGE, MEGATRON, any_python, environment, must, unpacked

UNPACKED = {"megatron": (MEGATRON,), "bridge": (MEGATRON, BRIDGE)}
"""Releases that are unpacked instead of installed, by framework."""
UNPACKED_TITAN = "torchtitan==0.2.2"
"""The release that reads TOML is unpacked beside the installed one."""


def framework_env(
    framework: str, python: str, cache: Path, releases: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables of a launcher.

    `python` is the interpreter with the pinned releases; `releases` (package to version) names
    others: of what is unpacked another folder, of what is installed another environment.
    """
    folders = []
    for pinned in UNPACKED.get(framework, ()):
        package, _, version = pinned.partition("==")
        folder = unpacked(f"{package}=={releases.get(package, version)}", python, cache)
        if package == "megatron-core":
            compile_helpers(folder, python)
        folders.append(str(folder))
    installed = {
        name: version
        for name, version in releases.items()
        if name not in {one.partition("==")[0] for ones in UNPACKED.values() for one in ones}
    }
    if (
        framework == "torchtitan"
        and f"torchtitan=={installed.get('torchtitan')}" == UNPACKED_TITAN
    ):
        folders.append(str(unpacked(UNPACKED_TITAN, python, cache)))
    elif installed:
        python = environment(any_python(), cache, installed)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(folders),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore",
    }


def compile_helpers(core: Path, python: str) -> None:
    """Compile megatron-core's C++ index builder for this Python, where its wheel has another's."""
    ask = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    suffix = must([python, "-c", ask]).strip()
    folder = core / "megatron" / "core" / "datasets"
    target = folder / f"helpers_cpp{suffix}"
    if target.exists():
        return
    includes = must([python, "-m", "pybind11", "--includes"]).split()
    compiler = (sysconfig.get_config_var("CXX") or "g++").split()[0]
    flags = ["-O3", "-shared", "-std=c++17", "-fPIC", *includes]
    must([compiler, *flags, str(folder / "helpers.cpp"), "-o", str(target)])
