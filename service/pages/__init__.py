"""The page: what `planner serve` shows to browsers under /ui.

    browser -> gate of `service.rest.application` -> `gate.Pages`: origin, token cookie, form
            -> a function of `routes` with a `Visit` -> engine (workers compute) -> template

A page is a pure function of its address and of the chosen colours. A module of this package that
has `PAGES` (or `POSTS`) answers addresses; `PAGE_CALLS` of it are computed in worker processes.
"""
