"""Tools that fine-tune on a training framework: TRL, axolotl, LLaMA-Factory; written and read."""
