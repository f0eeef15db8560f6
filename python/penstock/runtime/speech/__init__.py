"""Speech models: text to samples."""
