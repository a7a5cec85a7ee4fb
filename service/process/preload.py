"""Imported once by the process that workers are forked from: what every request needs.

A worker is then there in milliseconds, with the imports and the packaged examples in memory once
for all of them. The small solve reads what is read on first use: catalogue, calibration, rules.
"""

import gc

import ortools.sat.python.cp_model  # noqa: F401

import service.pages.calls  # noqa: F401  what pages compute
from service.handlers.calls import call

call("solve", {"model": "llama3-8b", "cluster": "h100-x8", "top": 1})
# What is here now stays: no worker's collector needs to look at it, nor to copy its pages.
gc.collect()
gc.freeze()
