"""How right the cost model is: predictions compared with runs that others measured.

`points` reads the measured runs, `predict` prices each of them, `metrics` and `baselines` turn the
pairs into numbers, `report` puts them together, `text` prints them.
"""
