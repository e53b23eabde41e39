"""Why each allocation waits, and the smallest change that lets it start."""
