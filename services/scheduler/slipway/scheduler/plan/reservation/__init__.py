"""Reservations: places and a start time kept for a blocked head of line, and who may pass it meanwhile."""

from slipway.scheduler.plan.reservation.reservation import Reservation
from slipway.scheduler.plan.reservation.reservations import Reservations

__all__ = ["Reservation", "Reservations"]
