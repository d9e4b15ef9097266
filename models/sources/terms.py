"""The terms that some weights come under: their text for people, and who accepts them."""

from collections.abc import Callable
from html.parser import HTMLParser

from models.catalog import Terms

# Shows the text of terms to whoever pulls; returns whether they accept it.
Accepts = Callable[[Terms, str], bool]

PARAGRAPHS = {"h1", "h2", "h3", "p", "li"}


def nobody_accepts(terms: Terms, text: str) -> bool:
    return False


def text_of(page: str) -> str:
    """The headings and paragraphs of a web page's article, from its title on.

    One line each, with a blank line between two.
    """
    reader = _Paragraphs()
    reader.feed(page)
    words = (" ".join(paragraph.split()) for paragraph in reader.paragraphs)
    return "\n\n".join(paragraph for paragraph in words if paragraph)


class _Paragraphs(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.paragraphs: list[str] = []
        self._in_article = self._in_paragraph = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_article |= tag == "h1"
        if self._in_article and tag in PARAGRAPHS:
            self.paragraphs.append("")
            self._in_paragraph = True

    def handle_endtag(self, tag: str) -> None:
        self._in_article &= tag != "article"
        self._in_paragraph &= tag not in PARAGRAPHS

    def handle_data(self, data: str) -> None:
        if self._in_paragraph:
            self.paragraphs[-1] += data
