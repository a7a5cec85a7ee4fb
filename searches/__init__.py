"""Which plans: the rules, the enumeration, the pruning, the ranking, and the executors."""
