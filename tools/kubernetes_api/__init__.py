"""A small API server of Kubernetes with Kueue's kinds: it refuses what the real one does.

It is for tests, and no copy: it has what a controller of admission checks meets. Lists with
versions, watches, merge patches and server-side apply with managed fields, the status subresource,
schemas, roles, and the rules of Kueue's webhook and of suspended Jobs, each with where it is from.
"""
