"""Names that no other test, and no earlier play of the same test, has taken in a stack that is shared."""

import uuid


def fresh(word: str) -> str:
    """A new name that begins with this word: what failed is played again beside what its first play has left."""
    return f"{word}-{uuid.uuid4().hex[:6]}"
