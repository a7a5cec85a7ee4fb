"""Jobs: their queue, leases, rows so far, and where they are kept."""
