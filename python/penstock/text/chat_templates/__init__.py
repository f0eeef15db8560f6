"""Chat templates: rendering under limits, and what a template lacks."""
