"""Traces of torch.profiler (Kineto): rows, steps, kinds of kernels, communicators, overlap."""
