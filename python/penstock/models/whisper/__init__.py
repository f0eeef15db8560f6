"""Whisper, which transcribes speech: its files, encoder, decoder and decoding rules."""
