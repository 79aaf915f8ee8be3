"""The device at hand: detection, compilation, the kernel cache, timing, worker processes."""
