"""Runs the command line as `python -m planner`."""

from planner.cli.app import main

main()
