"""Decides which traffic through the proxy is activity of a user. Pure.

Traffic in both directions is activity while it flows; an open connection without traffic is not. Requests that a page
makes by itself are not activity either. While its tab is visible, JupyterLab polls kernels, sessions and terminals
every few seconds, stores its layout every ten seconds, and receives events on a WebSocket of its own. So for a notebook
three kinds of requests are ignored: reads of its REST API, its layout, and its events. The notebook itself reports the
activity of its kernels and terminals (`slipway.inside.service_reporter`).
"""

from slipway.model.lifecycle import Kind

_READS = ("GET", "HEAD", "OPTIONS")
_POLLED = "/api/"
_OF_THE_PAGE = ("/lab/api/", "/api/events/")


def is_use(kind: Kind, method: str, path: str) -> bool:
    """Whether a request for `path`, below the workload's root, is activity."""
    if kind is not Kind.NOTEBOOK:
        return True
    return not path.startswith(_OF_THE_PAGE) and not (method in _READS and path.startswith(_POLLED))
