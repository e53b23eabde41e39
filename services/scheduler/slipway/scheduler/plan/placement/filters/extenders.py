"""Extenders: a node does when every extender that manages the ask has said so. What it says is in the ask."""

from slipway.scheduler.plan.placement.filters.base import Refusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import Ask
from slipway.scheduler.plan.state.usage import Usage

NAME = "Extenders"


def refuse(ask: Ask, usage: Usage, at: At) -> Refused:
    """Refuse what an extender refuses, or has not answered for."""
    for saying in ask.outside.sayings if ask.outside is not None else ():
        yield Refusal(saying.reason, saying.one, saying.many, is_final=saying.is_final), saying.nodes[at]
