"""What an op means: the spec's model, its reader, and where ops and vendors are found."""
