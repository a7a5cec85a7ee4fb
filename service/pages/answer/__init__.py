"""What the page of plans shows of a result: plain data, made in worker processes."""
