"""Layers and the ends of the model on one device: kernels, products, experts, recomputation."""
