"""The judge is judged: wrong kernels, each of which the suite must reject, and right ones it must not.

`catalogue.every()` has the mutants, `hunt.hunt` runs the suite's cases against one, `orders` has correct
computations in many orders. `python docs/mutants.py` writes the table.
"""
