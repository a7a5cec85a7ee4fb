"""Tools that fine-tune on a training framework, from TRL to ms-swift; written and read."""
