"""What callers follow over both transports: the list of their jobs, and webhooks."""
