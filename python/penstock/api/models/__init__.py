"""The models and adapters that this server offers, and the leases that keep models loaded."""
