"""`python -m bench` from the repository root."""

import sys

from bench import main

sys.exit(main())
