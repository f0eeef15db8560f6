"""Speech to text: transcribes the recordings of a chat request with Whisper."""
