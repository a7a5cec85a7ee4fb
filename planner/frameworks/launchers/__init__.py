"""What starts a plan on its nodes: torchrun, Slurm, Kubernetes, and who sits where."""
