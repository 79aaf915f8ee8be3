"""The tests of this folder import their helpers by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from toy_objects import images  # noqa: F401 - a fixture of two files
