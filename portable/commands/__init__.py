"""The command line: `portable info`, `explain`, `check`, `trace`, `tune`."""
