"""Collections, metrics, and runs of the engine over them. Runs from the clone, not in the wheel."""
