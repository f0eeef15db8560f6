"""Chat templates: sandboxed rendering, and fallbacks for what a template does not support."""
