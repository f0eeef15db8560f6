"""`python -m penstock` is `penstock`."""

from __future__ import annotations

from penstock.cli.main import main

if __name__ == "__main__":
    main()
