"""Kinds of pages that print formulas that differ from ours; `docs/corrections.md` names them."""

MODELER = "an interactive modeler of parallelism and bandwidth"
GUIDE = "a long guide to communication and parallelism"
TAX = "a lesson on the communication tax with an overlap calculator"
BOUNDS = "an article on why communication bounds distributed training"
OVERVIEW = "an overview of communication volumes"
NOTES = "notes on sequence parallelism"
SHEETS = "data sheets, and pages that quote them"
