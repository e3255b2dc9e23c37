"""``python -m shmstore``: the same as the command `shmstore`."""

import sys

from shmstore.cli.main import main

sys.exit(main())
