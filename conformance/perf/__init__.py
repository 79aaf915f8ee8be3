"""How fast: bench cases, sweeps, baselines and roofs."""
