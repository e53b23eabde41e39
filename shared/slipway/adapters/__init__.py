"""Slipway as a part of other systems: one module for each, over the SDK. Each needs the extra of its name.

Owns nothing that is shared: a module here turns what its system asks for into calls of `slipway.sdk`, and answers
in the words of that system. Nothing of Slipway imports this package.
"""
