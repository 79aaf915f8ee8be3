"""Whole models: a training step and a decode step of each candidate, judged against float32, then timed."""
