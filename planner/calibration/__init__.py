"""The shared numbers behind every prediction: their names, a file of them, and their fit.

`parameters` says which there are, `file` reads and writes a calibration, `apply` prices with one.
`fit` finds one for measured runs, `crossval` says what it is worth for runs that it has not seen,
`report` prints both.
"""
