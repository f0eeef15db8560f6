"""Package that contains libpenstock_cuda.so and compiled kernels for `penstock.kernels.cuda`."""
