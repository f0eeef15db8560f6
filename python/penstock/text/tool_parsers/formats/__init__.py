"""The formats in which models write tool calls. Each format parses calls and builds their
grammar."""
