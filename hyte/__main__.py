"""`python -m hyte` is `hyte`."""

import sys

from hyte.cli import main

sys.exit(main())
