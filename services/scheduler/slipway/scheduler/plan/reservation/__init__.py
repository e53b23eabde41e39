"""Reservations: places and a start time that are reserved for a blocked head of a queue, and which work may pass it."""

from slipway.scheduler.plan.reservation.reservations import ChangedPool, Reservation, Reservations

__all__ = ["ChangedPool", "Reservation", "Reservations"]
