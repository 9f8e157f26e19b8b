"""The process that runs a sweep, from the checked configuration to the exit code."""
