"""The requests to an autoscaler: for which blocked work nodes are requested, and with which pods."""
