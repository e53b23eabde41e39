"""For all tests: how long a busy machine takes to draw an example is no property of what is tested."""

from hypothesis import HealthCheck, settings

settings.register_profile("slipway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slipway")
