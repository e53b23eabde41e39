"""The web page at `/` and its other paths: a frame, which JavaScript modules fill in the browser.

The answer is the same for every path and every reader, and contains no data of the cluster: the modules send requests
to the REST API with the login of the reader. The frame also contains the API's words for states and gates, so that the
words are defined only once.
"""

import base64
import hashlib
import re
from functools import cache

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.http.etags import is_known
from slipway.api.web import assets
from slipway.model.lifecycle import Event, Kind, Phase
from slipway.model.reasons import Gate, Result
from slipway.model.resources import GPU, GPU_NAMES
from slipway.model.state_words import JOB_STATE_WORDS, RANK_STATE_WORDS, STATE_WORDS, StateWord, word_for
from slipway.runtime.service import version

_IMPORTS = {
    "preact": "preact-11.2.0.mjs",
    "preact/hooks": "preact-hooks-11.2.0.mjs",
    "@preact/signals-core": "signals-core-1.14.5.mjs",
    "@preact/signals": "signals-2.11.4.mjs",
    "htm": "htm-3.1.1.mjs",
    "js-yaml": "js-yaml-5.5.0.mjs",
    "uplot": "uplot-1.6.32.mjs",
    "@tanstack/virtual-core": "virtual-core-3.19.11/index.js",
}
_SHARED = {
    "@xterm/xterm": "/assets/terminal/vendor/xterm-6.0.0.mjs",
    "@xterm/addon-fit": "/assets/terminal/vendor/xterm-addon-fit-0.11.0.mjs",
}
"""Modules that the terminal page of shell allocations also uses."""
_LATE = ("js-yaml", "uplot", "@tanstack/virtual-core")
"""Modules that are loaded only when a page needs them, and not before the first content."""
_IMPORT = re.compile(r'^import [^"]*"\./([^"]+)";', re.MULTILINE)
"""A static import: the browser loads the named module together with the importing one."""
_POLICY = (
    "default-src 'none'; script-src 'self' 'sha256-{map_hash}'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Slipway</title><meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<script src="{root}theme.js"></script>
<link rel="stylesheet" href="{root}pages.css">
<script type="importmap">{imports}</script>
{preloads}
<script type="module" src="{root}main.js"></script>
<script type="application/json" id="facts">{facts}</script></head>
<body><div id="app"></div>
<noscript><p>This page needs JavaScript. The <a href="/docs">REST API</a> and the command <code>slipway</code> do
not.</p></noscript></body></html>
"""


async def show(request: Request) -> Response:
    """Return the page."""
    text, policy, tag = _made()
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": policy, "ETag": tag}
    headers |= {"Referrer-Policy": "same-origin", "X-Content-Type-Options": "nosniff"}
    if is_known(request, tag):
        return Response(status_code=304, headers=headers)
    return Response(text, headers=headers, media_type="text/html")


def facts() -> dict[str, object]:
    """Return what the modules need before their first request: tables that the services themselves use."""
    return {
        "version": version(),
        "phases": [phase.value for phase in Phase],
        "states": _words(STATE_WORDS),
        "rankStates": _words(RANK_STATE_WORDS),
        "jobStates": _words(JOB_STATE_WORDS),
        "flagWords": {phase.value: words for phase in Phase if (words := _flag_words(phase))},
        "kinds": [kind.value for kind in Kind],
        "gates": [gate.value for gate in Gate],
        "events": [event.value for event in Event],
        "results": [result.value for result in Result],
        "gpu": GPU,
        "gpuNames": GPU_NAMES,
    }


def _words(states: tuple[StateWord, ...]) -> dict[str, object]:
    """Return {word: its tone and its meaning}."""
    return {each.word: {"tone": each.tone, "meaning": each.meaning} for each in states}


def _flag_words(phase: Phase) -> dict[str, str]:
    """Return {flag of an allocation: the word for the phase with that flag}, by precedence."""
    words = {
        "hold": word_for(phase, None, hold=True, ready=False, waiting=False),
        "waiting": word_for(phase, None, hold=False, ready=False, waiting=True),
        "ready": word_for(phase, None, hold=False, ready=True, waiting=False),
    }
    return {flag: word for flag, word in words.items() if word != phase.value}


@cache
def _made() -> tuple[str, str, str]:
    """Return (the page, its content security policy, its ETag); they depend only on the code."""
    root = f"/assets/pages/{assets.pages_digest()}/"
    named = {name: f"{root}vendor/{file}" for name, file in _IMPORTS.items()} | _SHARED
    imports = msgspec.json.encode({"imports": named})
    first = [*_needed_by("main.js"), *(f"vendor/{file}" for name, file in _IMPORTS.items() if name not in _LATE)]
    preloads = "\n".join(f'<link rel="modulepreload" href="{root}{name}">' for name in first)
    # A `<` in a string could end the script element, so it is escaped as JSON permits.
    told = msgspec.json.encode(facts()).decode().replace("<", "\\u003c")
    text = _PAGE.format(root=root, imports=imports.decode(), preloads=preloads, facts=told)
    map_hash = base64.b64encode(hashlib.sha256(imports).digest()).decode()
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:24]}"'
    return text, _POLICY.format(map_hash=map_hash), tag


def _needed_by(module: str) -> list[str]:
    """Return all modules that a module of the page imports, also indirectly; it cannot start without them."""
    found, open_ = set[str](), [module]
    while open_:
        text = assets.load(f"pages/{open_.pop()}").plain.decode()
        new = set(_IMPORT.findall(text)) - found
        found |= new
        open_ += new
    return sorted(found - {module})
