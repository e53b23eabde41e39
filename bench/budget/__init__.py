"""What a launch and a tick may cost, counted: no clock is read, so a busy machine changes nothing.

`launches` counts calls, entries and bytes of the whole system on virtual time; `exchanges` the commands that a real
Redis executes for each call of ours; `ticks` the work of the planner. `__main__` holds them to `budget.json`.
"""
