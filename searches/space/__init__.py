"""Which plans exist: coupled axes as a CP-SAT model, free axes as masks, shards of both."""
