"""The complete list of requests that sequences omit, and why. They are omitted where operations are drawn, not where
answers are compared. For these requests the model is not known to behave as a real API server.
"""

import msgspec


class Omission(msgspec.Struct, frozen=True, kw_only=True):
    """One omitted request."""

    what: str
    why: str


OMISSIONS = (
    Omission(
        what="controllers: garbage collection, namespaces that end, disruption budgets",
        why="they act in their own time; the contract suite runs them on both (tests/contract/kube)",
    ),
    Omission(
        what="the taint that a new Node is given, and the volume with the token that a pod is given",
        why="nodes of the local cluster are ready when they come, and its pods mount no token that way;"
        " the real server runs without the first, and our pods do without the second",
    ),
    Omission(
        what="generateName",
        why="the server draws names at random; nothing of ours uses it, since a lost answer then leaks an object",
    ),
    Omission(
        what="LIST at resourceVersion 0, or not older than a version that is not the newest",
        why="any state since then is a right answer; both servers only promise what the other may not show",
    ),
    Omission(
        what="pages of lists of cluster-wide kinds",
        why="where a page ends depends on the objects of the other sequences",
    ),
    Omission(
        what="the wording of refusals and warnings",
        why="code, reason, causes and our error class are compared; words that our client reads decide the error class",
    ),
    Omission(
        what="managedFields",
        why="the order of entries depends on the second of the write; conflicts of apply, which come from them, are"
        " compared",
    ),
    Omission(
        what="values of the wrong type, and empty metadata maps, in a server-side apply",
        why="the server answers 500 to the former and stores the latter as they are; nothing of ours applies",
    ),
    Omission(
        what="the status of Services, Services with an address of their own or without a selector",
        why="addresses are drawn at random; ours are headless and have a selector",
    ),
    Omission(
        what="a delete with a resourceVersion and a propagation policy that changes the object's finalizers",
        why="the server changes the object first and then finds the version changed; we never ask for both",
    ),
    Omission(
        what="a dry run of a delete whose propagation policy takes the object's last finalizer away",
        why="the server answers an object without content; nothing of ours asks for it",
    ),
    Omission(
        what="lists whose query is wrong in two ways",
        why="which of the two is told first",
    ),
    Omission(
        what="finalizers without a domain",
        why="some built-in kinds refuse names that are not in a list; ours have a domain",
    ),
    Omission(
        what="compaction, 410 and bookmarks",
        why="they depend on time; named tests force each on both (tests/contract/kubeapi, tests/contract/kube)",
    ),
)
