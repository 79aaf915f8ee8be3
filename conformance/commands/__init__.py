"""The command line: `portable-conformance run`, `compare`, `demo`, `calibrate`."""
