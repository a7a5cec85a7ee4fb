"""What follows from a plan: explanations, bottlenecks, neighbours, comparisons."""
