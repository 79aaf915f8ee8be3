"""`python -m portable` is the command `portable`."""

import sys

from portable.commands.cli import main

sys.exit(main())
