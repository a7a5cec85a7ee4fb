"""How right the cost model is: predictions compared with runs that others measured."""
