"""Adapters that use Slipway from other systems: one module for each, on the SDK. Each needs the extra of its name.

The modules share no code. A module translates the requests of its system into calls of `slipway.sdk`, and responds in
the terms of that system. No other part of Slipway imports this package.
"""
