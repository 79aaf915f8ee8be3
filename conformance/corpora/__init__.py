"""Other people's kernels, and programs in the form of theirs, for `weather` to have each Triton compile."""
