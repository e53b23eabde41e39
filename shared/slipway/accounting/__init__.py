"""Usage and its daily totals: computed exactly from the transitions of allocations."""
