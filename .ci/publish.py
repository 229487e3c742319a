"""Write what only the repository's host knows, before a release is built: absolute links in README.md, and the project's URLs.

python .ci/publish.py OWNER/NAME COMMIT
"""

import re
import sys
from pathlib import Path

HOST, RAW = "https://github.com", "https://raw.githubusercontent.com"


def absolute(text: str, repository: str, commit: str) -> str:
    """Return Markdown whose links and images are absolute, so that package indexes show them."""

    def link(found: re.Match[str]) -> str:
        mark, target = found[1], found[2]
        if target.startswith("../../"):  # a page of the host
            return f"{mark}({HOST}/{repository}/{target.removeprefix('../../')})"
        kind = f"{RAW}/{repository}/{commit}" if target.endswith(".png") else f"{HOST}/{repository}/blob/{commit}"
        return f"{mark}({kind}/{target})"

    return re.sub(r"(\])\((?!https?:|#)([^)\s]+)\)", link, text)


def urls(repository: str) -> str:
    """Return the table of URLs for pyproject.toml."""
    home = f"{HOST}/{repository}"
    pages = {"Source": home, "Issues": f"{home}/issues", "Changelog": f"{home}/blob/main/CHANGELOG.md"}
    return "\n[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in pages.items())


if __name__ == "__main__":
    readme, project = Path("README.md"), Path("pyproject.toml")
    readme.write_text(absolute(readme.read_text(), sys.argv[1], sys.argv[2]))
    project.write_text(project.read_text() + urls(sys.argv[1]))
