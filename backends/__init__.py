"""One folder per vendor: how its GPUs are found, compiled for and launched on."""
