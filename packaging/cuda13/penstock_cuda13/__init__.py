"""The place of libpenstock_cuda.so, which `penstock.kernels.cuda` loads."""
