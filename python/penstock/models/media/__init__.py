"""The media of multimodal models: prepared images, videos and recordings, and their place in a
prompt."""
