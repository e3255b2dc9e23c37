"""What `scripts/docs` asks of the built site, tried on sites that lack it; the site itself it asks on every build."""

from __future__ import annotations

import pytest

from scripts.documentation.code_blocks import missing

PAGE = """# Recipe

Text.

```python title="a.py"
print(1 < 2)
```
"""
BUILT = """<h1>Recipe</h1><p>Text.</p><span>a.py</span><pre><code><a></a>print(<b>1</b> &lt; 2)
</code></pre>"""


def test_a_built_page_has_its_blocks() -> None:
    assert list(missing(PAGE, BUILT)) == []


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ("<pre>print(1)</pre>", "line 5: the site does not have this block as it is"),
        (BUILT + '<pre>--8 < --"a.py"</pre>', 'the site shows a marker as text: --8 < --"a.py"'),
        (BUILT + "<p>&lt;!-- generated: metrics --&gt;</p>", "the site shows a marker as text: <!-- generated: metrics -->"),
        (BUILT + "<p>::: shmstore.Event</p>", "the site shows a marker as text: ::: shmstore.Event"),
    ],
)
def test_what_a_built_page_lacks(html: str, said: str) -> None:
    """A block that is missing or changed, an include that a formatter took apart, and a marker that nothing filled."""
    assert list(missing(PAGE, html)) == [said]
