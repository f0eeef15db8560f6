"""The chats of the web page: their requests to the model, and the answers that run in this
process."""
