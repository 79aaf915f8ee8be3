"""`python -m portable` is the command `portable`."""

import sys

from portable.cli import main

sys.exit(main())
