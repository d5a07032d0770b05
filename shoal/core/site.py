"""Addresses of Shoal's documentation: messages name them, for a package brings no pages."""

# Also in pyproject.toml, and `site_url` of mkdocs.yml.
SITE = "https://shoal-train.github.io/shoal/"


def page(name: str, heading: str = "") -> str:
    """The address of a page of the site, by its file in docs/ without ".md".

    >>> page("study", "failed-trials")
    'https://shoal-train.github.io/shoal/study.html#failed-trials'
    """
    mark = f"#{heading}" if heading else ""
    return f"{SITE}{name}.html{mark}"
