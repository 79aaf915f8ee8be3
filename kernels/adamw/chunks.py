"""What the kernels, the tables and the reference agree on: the columns of a table and the size of a chunk."""

from __future__ import annotations

CHUNK = 4096
"""Elements of a thread block: 114 KB in float32, and 244 blocks for a million elements. torch has 65536."""
COLUMNS = ("size", "param", "grad", "exp_avg", "exp_avg_sq", "step", "number")
"""Of a row of `tensors`."""
