"""ptxemu: an emulator for the PTX of Hopper and Blackwell kernels, in NumPy."""
