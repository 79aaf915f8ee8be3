"""The record of a run, and what is done with records: merge, compare, submit."""
