"""Writes down the plugin contract: its frozen copy for the tests, and the reference pages.

python scripts/contract.py            prints nothing, writes docs/reference and the frozen copy
python scripts/contract.py --check    writes nothing, exits 1 where one of them is out of date
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = ROOT / "core/byref/contract"
FILES = ("hookspecs", "specs", "sparse", "calls", "roles", "context", "state", "step", "requests", "model", "plugin")
FROZEN = ROOT / "tests/core/contract/frozen.txt"
PAGES = ROOT / "docs/reference"


def frozen() -> str:
    """Every public name of the contract with its signature, one a line."""
    lines = [f"API_VERSION = {version()}"]
    for name in FILES:
        lines += [f"{name}: {line}" for node in public(parse(name).body) for line in signatures(node)]
    return "\n".join(lines) + "\n"


def version() -> str:
    values = (node for node in parse("plugin").body if isinstance(node, ast.AnnAssign))
    return next(ast.unparse(node.value) for node in values if ast.unparse(node.target) == "API_VERSION" and node.value)


def parse(name: str) -> ast.Module:
    return ast.parse((CONTRACT / f"{name}.py").read_text())


def public(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if not getattr(node, "name", "").startswith("_"):
            yield node


def signatures(node: ast.stmt, prefix: str = "") -> Iterator[str]:
    match node:
        case ast.FunctionDef():
            result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            yield f"{prefix}{node.name}({ast.unparse(node.args)}){result}"
        case ast.ClassDef():
            yield f"{prefix}class {node.name}({', '.join(ast.unparse(base) for base in node.bases)})"
            for member in node.body:
                if not getattr(member, "name", "").startswith("_") or getattr(member, "name", "") == "__call__":
                    yield from signatures(member, f"{prefix}{node.name}.")
        case ast.AnnAssign() if not ast.unparse(node.target).startswith("_"):
            value = f" = {ast.unparse(node.value)}" if node.value and prefix else ""
            yield f"{prefix}{ast.unparse(node.target)}: {ast.unparse(node.annotation)}{value}"
        case ast.Assign() if ast.unparse(node.targets[0]).isupper():
            yield f"{prefix}{ast.unparse(node)}"


def page(name: str) -> str:
    """A reference page: each entry's signature and its docstring."""
    module = parse(name)
    parts = [f"# `byref.contract.{name}`", ast.get_docstring(module) or ""]
    for node in public(module.body):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            parts += entry(node, "##")
    return "\n\n".join(part for part in parts if part) + "\n"


def entry(node: ast.ClassDef | ast.FunctionDef, heading: str) -> Iterator[str]:
    first = next(signatures(node))
    yield f"{heading} {node.name}"
    yield f"```python\n{first}\n```"
    yield ast.get_docstring(node) or ""
    if isinstance(node, ast.ClassDef):
        yield "\n".join(fields(node))
        for member in public(node.body):
            if isinstance(member, ast.FunctionDef):
                yield from entry(member, heading + "#")


def fields(node: ast.ClassDef) -> Iterator[str]:
    """Attributes, each with the string that stands below it."""
    for member, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_"):
            said = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            value = f" = {ast.unparse(member.value)}" if member.value else ""
            text = " ".join(str(said).split())
            yield f"- `{ast.unparse(member.target)}: {ast.unparse(member.annotation)}{value}` {text}".rstrip()


def main() -> int:
    wanted = {FROZEN: frozen()} | {PAGES / f"{name}.md": page(name) for name in FILES}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date")
        return bool(stale)
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
