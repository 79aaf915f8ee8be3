"""Kernels of no op of ours, as anybody might bring them: one right, one wrong on the tail, one on wave64."""
