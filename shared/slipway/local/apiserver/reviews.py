"""Access and token reviews: everybody may do everything on the local cluster.

Owns the answers of the authorization and authentication groups. Pure.
"""

from slipway.local.apiserver.objects import Json

_USER: Json = {"username": "slipway-local", "groups": ["system:masters", "system:authenticated"]}
_RULES: Json = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}
_ANSWERS: dict[tuple[str, str], Json] = {
    ("authorization.k8s.io", "selfsubjectaccessreviews"): {"allowed": True, "reason": "local cluster"},
    ("authorization.k8s.io", "subjectaccessreviews"): {"allowed": True, "reason": "local cluster"},
    ("authorization.k8s.io", "selfsubjectrulesreviews"): _RULES,
    ("authentication.k8s.io", "tokenreviews"): {"authenticated": True, "user": _USER},
    ("authentication.k8s.io", "selfsubjectreviews"): {"userInfo": _USER},
}


def answer(group: str, plural: str, review: Json) -> Json | None:
    """The review with its status, None when there is no such review."""
    found = _ANSWERS.get((group, plural))
    return None if found is None else {**review, "metadata": {"creationTimestamp": None}, "status": found}
