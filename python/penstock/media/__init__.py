"""Decodes images, audio and video from clients, in child processes without rights."""
