"""The page that a browser gets while its workload does not answer yet, or after it has ended; it reloads by itself."""

from html import escape

from starlette.responses import Response

from slipway.api.allocations.view import allocation_path
from slipway.api.http.problems import ProblemRow, problem_response
from slipway.api.proxy.target import NoServer

AGAIN_S = 2
_NOT_YET = ProblemRow(503, "not-running", "The workload does not answer yet")
_ENDED = ProblemRow(410, "ended", "The workload has ended")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "frame-ancestors 'self'"
)
_STEPS = {
    "Pending": "Queued",
    "Assigned": "Assigned",
    "Pulling": "Pulling",
    "Starting": "Starting",
    "Running": "Running",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
{refresh}<title>{title}</title><link rel="icon" href="data:,">
<link rel="stylesheet" href="{root}assets/waiting/waiting.css"></head>
<body data-id="{id}" data-phase="{phase}" data-root="{root}" data-ended="{ended}">
<main><h1>{title}</h1><p class="id"><code>{id}</code></p>
{steps}
<p class="message" role="status">{message}</p>
<p class="more"><a href="{root}{link}/explain">Why</a> <a href="{root}{link}/logs">Log</a>
<a href="{root}trace/{id}">Trace</a> <a href="{root}{link}">Details</a></p></main>
<script type="module" src="{root}assets/waiting/waiting.js"></script></body></html>
"""


def waiting_response(state: NoServer, instance: str, *, is_browser: bool) -> Response:
    """Return 503 with Retry-After while the workload may still answer, 410 after its end; browsers get a page."""
    row = _ENDED if state.has_ended else _NOT_YET
    if not is_browser:
        detail = f"{state.allocation} ({state.phase}): {state.message}"
        return problem_response(row, detail, instance, retry_after_s=None if state.has_ended else AGAIN_S)
    page = _page(state, "../" * (instance.count("/") - 1))
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": _POLICY, "X-Frame-Options": "SAMEORIGIN"}
    if not state.has_ended:
        headers["Retry-After"] = str(AGAIN_S)
    return Response(page, status_code=row.status, headers=headers, media_type="text/html")


def _page(state: NoServer, root: str) -> str:
    """Return the page; `root` is the relative path from it to the root of the API."""
    title = f"The {state.kind} has ended" if state.has_ended else f"The {state.kind} is on its way"
    items = "".join(
        f'<li data-phase="{phase}"{_standing(phase, state)}>{words}<time></time></li>'
        for phase, words in _STEPS.items()
    )
    return _PAGE.format(
        # Without scripts, the browser reloads the page by this element.
        refresh="" if state.has_ended else f'<noscript><meta http-equiv="refresh" content="{AGAIN_S}"></noscript>\n',
        title=escape(title),
        phase=escape(state.phase),
        ended="true" if state.has_ended else "",
        message=escape(state.message),
        id=escape(state.allocation),
        root=root,
        link=escape(allocation_path(state.allocation)).removeprefix("/"),
        steps="" if state.has_ended else f'<ol class="steps" aria-label="Progress">{items}</ol>',
    )


def _standing(phase: str, state: NoServer) -> str:
    order = list(_STEPS)
    place = order.index(state.phase) if state.phase in order else len(order)
    here = order.index(phase)
    return ' class="done"' if here < place else ' class="now"' if here == place else ""
