"""Media in prompts: loads the images, recordings and videos of a request, and places them in the
prompt."""
