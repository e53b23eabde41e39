"""What axe finds on a page: the barriers that it calls serious or critical.

Owns how the checker gets into the page: over the browser's protocol, so that the policy of the page stays as it is.
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
    """Each with its rule, the element, and what would mend it."""
    page.call("Runtime.evaluate", expression=f"{AXE.read_text('utf-8')};0")
    found: list[str] = page.run(_FOUND)
    return found
