"""One folder per op: its meaning (`spec.yaml`), its float64 reference and its implementations."""
