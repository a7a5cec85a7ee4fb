"""Who a token says that its bearer is, where an OIDC issuer or a Kubernetes API server knows."""
