"""Chat templates: sandboxed rendering, and fallbacks for features a template does not support."""
