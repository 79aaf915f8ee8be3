"""Whether outputs are right: the float64 reference, the bound, and the pattern of wrong elements."""
