"""One job over several pools: which pools are joined, and what an answer says of it."""
