"""`/trace/{id}`: the waterfall of one allocation, for a browser.

The page contains no data of the allocation except its id. Its script requests the spans from the REST API with the
login of the reader.
"""

from html import escape

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations.view import allocation_path
from slipway.model.ids import AllocationId

PATH = "/trace/{id}"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_SERVICES = ("api", "scheduler", "podworker", "watcher")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Trace of {id}</title><link rel="icon" href="data:,">
<link rel="stylesheet" href="../assets/trace/trace.css"></head>
<body data-id="{id}"><main><h1>Trace of <code>{id}</code></h1>
<p class="about"><span id="phase" role="status"></span> <span id="whole"></span>
<a href="..{link}">Details</a> <a href="..{link}/timeline">Timeline</a> <a href="..{link}/explain">Why</a>
<a href="..{link}/trace">JSON</a></p>
<div class="bar"><span class="span" role="group" aria-label="What is shown">
<button data-extent="start">Start</button><button data-extent="all">Whole life</button></span>
<ul class="services" aria-label="Services">{services}</ul></div>
<div class="card"><div class="axis" aria-hidden="true"><span>Span</span>
<span class="ticks"></span><span>Took</span></div>
<p class="message" role="status"></p><ol class="rows"></ol></div>
<noscript><p>The waterfall is drawn by a script; <code>slipway trace {id}</code> draws it in a terminal.</p></noscript>
</main>
<script type="module" src="../assets/trace/trace.js"></script></body></html>
"""


async def show(request: Request) -> Response:
    """Return the page."""
    id_ = str(request.path_params["id"])
    services = "".join(f'<li data-of="{name}">{name}</li>' for name in _SERVICES)
    link = escape(allocation_path(AllocationId(id_)))
    page = _PAGE.format(id=escape(id_), link=link, services=services)
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": _POLICY}
    return Response(page, headers=headers, media_type="text/html")
