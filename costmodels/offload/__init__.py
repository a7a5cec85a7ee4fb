"""What lies on the host, and the traffic to it."""
