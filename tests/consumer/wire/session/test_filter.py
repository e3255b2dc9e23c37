"""shmstore.consumer.wire.session.filter: which tables a client's filter wants."""

import pytest

from shmstore.consumer.wire.session.filter import compile_filter, patterns
from shmstore.errors import ProtocolError


@pytest.mark.parametrize("text", ["", " , ", r".*\..*", ".*", r"shop\.x,.*\..*"])
def test_everything(text: str) -> None:
    """An empty filter and the clients' default want everything, at no cost an event."""
    assert compile_filter(text) is None


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        (r"shop\.orders", "shop.orders", True),
        (r"shop\.orders", "SHOP.Orders", True),
        (r"shop\.order", "shop.orders", False),
        (r"hop\.orders", "shop.orders", False),
        (r"shop\..*", "shop.", True),
        (r"a\.b, shop\..*", "shop.orders", True),
        (r"shop\.t_\d{1,3}", "shop.t_12", True),
        (r"shop\.t_\d{1,3}", "shop.t_1234", False),
        (r"(a,b|c)\.x", "a,b.x", True),
    ],
)
def test_names(text: str, name: str, wanted: bool) -> None:
    """Expressions match the whole name in any case; any one of them is enough; commas within brackets do not part them."""
    chosen = compile_filter(text)
    assert chosen is not None
    assert chosen(name) is wanted


def test_patterns() -> None:
    """A filter is parted at its outer commas."""
    assert list(patterns(r"a{1,2}\.b,[x,y]\.c , (d,e)")) == [r"a{1,2}\.b", r"[x,y]\.c", "(d,e)"]


@pytest.mark.parametrize("text", ["(", "*", "a{2,1}", "[z-a]", "x" * 40000])
def test_refused(text: str) -> None:
    """What is no expression, or is far too long, is refused with a reason."""
    with pytest.raises(ProtocolError):
        compile_filter(text)
