"""The cluster: pools, nodes, what-if questions, dead letters, the decision log, the state of this process."""
