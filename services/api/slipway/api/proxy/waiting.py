"""What a browser sees before its workload answers, and after it has ended: a page that looks again by itself."""

from html import escape

from starlette.responses import Response

from slipway.api.problems import Row, problem_response
from slipway.api.proxy.target import NotYet
from slipway.api.view import allocation_path

AGAIN_S = 2
_NOT_YET = Row(503, "not-running", "The workload does not answer yet")
_ENDED = Row(410, "ended", "The workload has ended")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">{refresh}
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
main {{ max-width: 36rem; margin: 18vh auto 0; padding: 0 1.5rem }}
h1 {{ font-size: 1.3rem; margin: 0 0 .5rem }} p {{ margin: .4rem 0 }}
code {{ font: .9em ui-monospace, monospace }} .phase {{ opacity: .7 }}
</style></head>
<body><main><h1>{title}</h1><p class="phase" role="status">{phase}</p><p>{message}</p>
<p><code>{id}</code> · <a href="{link}">details</a></p></main></body></html>
"""


def waiting_response(state: NotYet, instance: str, *, is_browser: bool) -> Response:
    """503 with Retry-After while it may still answer, 410 after its end; a page for browsers."""
    row = _ENDED if state.has_ended else _NOT_YET
    if not is_browser:
        detail = f"{state.allocation} ({state.phase}): {state.message}"
        return problem_response(row, detail, instance, retry_after_s=None if state.has_ended else AGAIN_S)
    page = _PAGE.format(
        refresh="" if state.has_ended else f'<meta http-equiv="refresh" content="{AGAIN_S}">',
        title=escape(row.title),
        phase=escape(state.phase),
        message=escape(state.message),
        id=escape(state.allocation),
        link=escape(allocation_path(state.allocation)),
    )
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": _POLICY}
    if not state.has_ended:
        headers["Retry-After"] = str(AGAIN_S)
    return Response(page, status_code=row.status, headers=headers, media_type="text/html")
