"""Request records, metrics and the access log."""
