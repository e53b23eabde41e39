"""Secrets among the values of the chart: they reach Secrets and nothing else that an install makes."""

import json

from tests.support import chart
from tests.support.secret_inputs import PLANTED

CANARY = "canary-of-the-values-5d01"
SETS = {
    "value valkey.auth.password": {"valkey": {"auth": {"password": CANARY}}},
    "value externalRedis.url": {
        "valkey": {"enabled": False},
        "externalRedis": {"url": f"rediss://slipway:{CANARY}@redis.example:6379/0"},
    },
}


def test_each_secret_value_is_planted() -> None:
    """A new secret among the values needs its set here."""
    assert {name for name in PLANTED if name.startswith("value ")} == SETS.keys()


def test_a_secret_value_is_in_secrets_only() -> None:
    """It is in no ConfigMap, argument or variable of a pod, and not in the notes that Helm prints."""
    for name, values in SETS.items():
        documents = chart.render(values)
        holders = {each["kind"] for each in documents if CANARY in json.dumps(each)}
        assert holders == {"Secret"}, name
        assert CANARY not in chart.notes(values), name
