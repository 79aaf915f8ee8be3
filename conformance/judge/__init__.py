"""Whether an answer is right: the float64 reference, the bound, and where wrong elements lie."""
