"""Names that no other test, and no earlier run of the same test, has used in a shared stack."""

import uuid


def fresh(word: str) -> str:
    """Return a new name that begins with this word: a failed test runs again beside the objects that its first run left
    behind."""
    return f"{word}-{uuid.uuid4().hex[:6]}"
