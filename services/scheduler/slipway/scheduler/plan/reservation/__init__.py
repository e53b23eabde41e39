"""Reservations: places and a start time that are reserved for a blocked head of a queue, and which work may pass it."""

from slipway.scheduler.plan.reservation.reservations import Reservation, Reservations

__all__ = ["Reservation", "Reservations"]
