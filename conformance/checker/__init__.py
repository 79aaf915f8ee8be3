"""`check()`: judging any function against an op's spec."""
