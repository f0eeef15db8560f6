"""Tensor operations (`ops`) and the kernels that compute them (`native`, `triton`, `cuda`).

Installed as `penstock.kernels`. Imports no other part of Penstock except the extension module.
Importing this package, `ops_interface`, `weights` or `native` imports no torch. README.md says how
to add an op.
"""
