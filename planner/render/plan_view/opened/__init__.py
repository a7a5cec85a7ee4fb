"""Cards of the numbers of a plan, each opened to its formula."""
