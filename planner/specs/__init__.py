"""What users state: model and cluster files, other formats of both, the `search:` section."""
