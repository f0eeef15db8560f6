"""From a request to a prompt as token ids that fit the context."""
