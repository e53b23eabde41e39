"""The findings of axe on a page: barriers of the levels serious and critical.

Owns how the checker is loaded into the page: over the browser's protocol, so that the page's policy need not change.
"""

import json
from pathlib import Path

from tests.browser.chromium import Page

AXE = Path(__file__).parent / "vendor" / "axe-core-4.14.1.min.js"
IMPACTS = ("serious", "critical")
_FOUND = (
    "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations"
    f".filter((each) => {json.dumps(IMPACTS)}.includes(each.impact))"
    ".flatMap((each) => each.nodes.map((node) => `${each.id}: ${node.html.slice(0, 160)}: ${node.failureSummary}`)))"
)


def barriers(page: Page) -> list[str]:
    """Each barrier with its rule, the element, and the fix."""
    page.call("Runtime.evaluate", expression=f"{AXE.read_text('utf-8')};0")
    found: list[str] = page.run(_FOUND)
    return found
