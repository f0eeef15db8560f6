"""Operations: what they mean (`ops`), and who computes them (`native`, `triton`).

Installed as `penstock.kernels`. Imports nothing of Penstock but its own files and the extension
module. Importing this package, `ops_interface`, `weights` or `native` imports no torch.
"""
