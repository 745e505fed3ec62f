"""attnbook: the kernels, runs and figures of the book "Attention, Cycle by Cycle"."""
