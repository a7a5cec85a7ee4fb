"""Groups of callers: members, weight, priority, quotas, and the file that names them."""
