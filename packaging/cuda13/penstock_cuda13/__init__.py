"""The place of libpenstock_cuda.so and of compiled kernels, which `penstock.kernels.cuda` loads."""
