"""The full cross product: `python -m tests.crash`, with the options of `python -m edgeoutbox.testing.crash`.

The models of all deliveries and the built-in adapters, at every failpoint and seam, over both copies of SQLite and
Postgres.
"""

import sys

from edgeoutbox.testing.crash.__main__ import MODELS, main
from edgeoutbox.testing.crash.matrix import POSTGRES, SCHEMES
from tests.crash.subjects import SUBJECTS

if __name__ == "__main__":
    sys.exit(main(subjects={**MODELS, **SUBJECTS}, databases=(*SCHEMES, POSTGRES)))
