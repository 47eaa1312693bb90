"""What is public is documented, or the build fails."""

from __future__ import annotations

import re
from pathlib import Path

from butler_memory import errors, settings
from butler_memory.mcp_server.tools import TOOLS

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def test_every_setting_and_variable_is_documented() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    keys = [".".join(path) for path in settings._leaves(settings.MemorySettings)]
    fixed = [name for name in settings.variables() if "__" not in name]
    own = {settings.PREFIX + key.upper() for key in keys}
    assert [key for key in keys if f"`{key}`" not in page] == []
    assert [name for name in fixed if name not in own and f"`{name}`" not in page] == []


def test_every_error_code_is_documented() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert [kind.code for kind in kinds if f"`{kind.code}`" not in page] == []


def test_every_tool_is_in_the_readme() -> None:
    page = (ROOT / "README.md").read_text()
    assert [tool.name for tool in TOOLS if f"`{tool.name}`" not in page] == []


def test_no_link_of_the_readme_is_dead() -> None:
    links = LINK.findall((ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
