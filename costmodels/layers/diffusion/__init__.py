"""Layers of diffusion transformers: sequences of latents and text under modulation by the step."""
