"""The formats in which models write tool calls: each one parses them and writes their grammar."""
