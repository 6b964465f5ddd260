"""Trains the projection: token tables, pairs, losses, the loop. Runs from the clone, not in the wheel."""

import os

# Must be set before torch is imported. By default its threads spin while they wait for each other, so that one other
# busy program on a core made a step up to 5 times slower (on 2 cores 1.35 s, not 0.26 s); alone it costs nothing.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
