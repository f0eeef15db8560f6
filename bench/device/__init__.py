"""What a GPU machine is asked in one go: `bench/device/run.sh` says how."""
