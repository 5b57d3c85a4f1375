"""Takes statements that never run out of a syntax tree."""

import ast

_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def keep_reachable(tree: ast.Module, imported: bool) -> None:
    """Drop what follows a return, raise, break or continue, and the main part of a module.

    imported: whether the file is only imported, so that `if __name__ == "__main__":` is false.
    """
    if imported:
        tree.body = [one for one in tree.body if not is_main(one)]
    waiting: list[ast.AST] = [tree]
    for node in waiting:  # grows while it is iterated; statements are in no expressions
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                ends = [n for n, one in enumerate(block) if isinstance(one, _ENDS)]
                del block[ends[0] + 1 if ends else len(block) :]
                waiting += block


def is_main(node: ast.AST) -> bool:
    """Whether a node is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and any(
        isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
    )
