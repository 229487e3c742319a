"""Markup as a tree: what is not an element is text, and text is escaped when the tree is written, here and nowhere else.

Tags and attribute names are written in this package's code. Everything else - names of methods, folders, classes, data -
can only become text or the value of an attribute. Scripts and styles are written as they are, so they may come from
this package's own files only; a policy with their hashes forbids all others to the browser.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from hashlib import sha256
from html import escape
from typing import TypeAlias
from xml.etree.ElementTree import Element

from choral.base.text import visible

Inside: TypeAlias = "Element | str | int | float | Iterable[Inside] | None"
_VOID = frozenset({"meta", "link", "br", "img"})
_RAW = frozenset({"script", "style"})
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")


def element(tag: str, *inside: Inside, **attributes: str | bool | None) -> Element:
    """Return an element.

    Args:
        tag: its name.
        inside: elements and text, also nested in lists; None is nothing.
        attributes: `class_` is class and `data_value` is data-value; None and False are left out, True is empty.

    >>> written(element("p", "1 < 2 ", element("b", "so"), title='"'))
    '<p title="&quot;">1 &lt; 2 <b>so</b></p>'
    """
    given = {k.rstrip("_").replace("_", "-"): v for k, v in attributes.items() if v is not None and v is not False}
    made = Element(tag, {k: "" if v is True else str(v) for k, v in given.items()})
    put(made, *inside)
    return made


def put(parent: Element, *inside: Inside) -> None:
    """Add elements and text at the end of an element."""
    for part in inside:
        if part is None:
            continue
        if isinstance(part, Element):
            parent.append(part)
        elif isinstance(part, str | int | float):
            _add_text(parent, str(part))
        else:
            put(parent, *part)


def _add_text(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def written(root: Element) -> str:
    """Return an element as text that both HTML and XML readers understand."""
    return "".join(_pieces(root))


def _pieces(node: Element) -> Iterator[str]:
    yield f"<{_checked(node.tag)}"
    for name, value in node.items():
        assert not name.startswith("on"), f"{name}: behavior belongs into the script"
        assert name != "href" or value.startswith(("#", "data:")), f"a page refers to nothing outside: {value}"
        yield f' {_checked(name)}="{escape(visible(value))}"'
    yield ">"
    if node.tag in _VOID:
        return
    text = node.text or ""
    if node.tag in _RAW:
        assert "</" not in text and "<!--" not in text, f"a {node.tag} that would end early"  # noqa: PT018  # not a test
        yield text
    else:
        yield escape(visible(text), quote=False)
    for child in node:
        yield from _pieces(child)
        yield escape(visible(child.tail or ""), quote=False)
    yield f"</{node.tag}>"


def _checked(name: str) -> str:
    assert _NAME.fullmatch(name), f"{name!r} is no name of an element or attribute"
    return name


def rules_of(root: Element) -> str:
    """Move every style attribute below an element into a class; return the rules of these classes.

    A policy allows one style element by its hash, but style attributes only all or none.
    """
    classes: dict[str, str] = {}
    for node in root.iter():
        style = node.attrib.pop("style", None)
        if style is not None:
            assert not set("<{}\\") & set(style), f"not a list of declarations: {style}"
            own = classes.setdefault(style, f"k{len(classes)}")
            node.set("class", f"{node.get('class', '')} {own}".strip())
    return "\n".join(f".{own} {{ {style} }}" for style, own in classes.items())


def policy(*, script: str, style: str) -> str:
    """Return the Content-Security-Policy of a page that runs one script, has one style and fetches nothing."""
    parts = ["default-src 'none'", f"script-src {_hash(script)}", f"style-src {_hash(style)}", "img-src data:"]
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
