"""Settings that hold for every test."""

from hypothesis import HealthCheck, settings

# A busy machine must fail no property: how long an example takes is measured by benchmarks, not here.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")
