"""Checks and measurements of a GPU machine; `bench/device/run.sh` runs them."""
