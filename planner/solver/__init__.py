"""From a request to ranked plans: `solve` and `evaluate`."""
