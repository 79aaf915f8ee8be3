"""Tuned configs, looked up by shape class when a call is first planned."""
