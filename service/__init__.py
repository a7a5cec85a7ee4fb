"""The product as a server: it calls `planner` and adds nothing to the answer."""
