"""One module for every program whose output says what a cluster has."""
