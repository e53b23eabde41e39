"""For which blocked work an autoscaler is asked for nodes, and with which pods."""
