"""The cost of a launch and of a tick as counts: no clock is read, so a busy machine does not change them.

`launches` counts calls, entries and bytes of the whole system in virtual time; `exchanges` counts the commands that a
real Redis executes for each of our calls; `ticks` counts the work of the planner. `__main__` compares the counts with
`budget.json`.
"""
