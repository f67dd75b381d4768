"""The documentation as a site: what README.md leads to, in the folders that it has here, built strictly by mkdocs.

Pages keep their relative links, so that they work on GitHub, in an editor and on the site. Run it by `make docs`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BUILT: Final = ROOT / ".docs"
_LIST_IN_PARAGRAPH: Final = re.compile(r"<p>[^<]*(?:<(?!/p>)[^<]*)*\n(?:- |\| )", re.DOTALL)


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from scripts.links import reachable

    pages = BUILT / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    for file in reachable(ROOT / "README.md"):
        target = pages / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    done = subprocess.run(mkdocs, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}\ndocs: the site was not built; mend what is above")
    unread = [page for page in sorted((BUILT / "site").rglob("*.html")) if _LIST_IN_PARAGRAPH.search(page.read_text())]
    if unread:
        names = ", ".join(str(page.relative_to(BUILT / "site")) for page in unread)
        sys.exit(f"docs: a list or table needs an empty line before it in {names}")
    print(f"{BUILT.relative_to(ROOT)}/site/index.html: {sum(1 for _ in (BUILT / 'site').rglob('*.html'))} pages")


if __name__ == "__main__":
    main()
