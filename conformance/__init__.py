"""The conformance program: cases, runner, judge, timer, records, command line."""
