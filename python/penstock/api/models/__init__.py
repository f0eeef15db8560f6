"""The models and adapters that this server offers, and their leases."""
