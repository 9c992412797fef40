"""Rules for the tests themselves: a loop of assertions has something to loop over."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
# Calls and methods that give as many elements as they are given.
KEEP_ELEMENTS = {
    *("sorted", "list", "tuple", "set", "frozenset", "dict", "reversed", "enumerate", "product", "pairwise"),
    *("map", "items", "values", "keys", "tolist"),
}


def _called(node: ast.expr) -> str:
    """The last part of the name of what is called."""
    return ast.unparse(node).rpartition(".")[2]


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is inside, but for `all` and `any`, which say nothing of how many there are."""
    yield node
    if not (isinstance(node, ast.Call) and _called(node.func) in {"all", "any"}):
        for child in ast.iter_child_nodes(node):
            yield from _parts(child)


def _listed(function: ast.FunctionDef) -> set[str]:
    """Arguments whose values `parametrize` lists or `given` draws."""
    names = set()
    for node in function.decorator_list:
        if isinstance(node, ast.Call) and _called(node.func) == "parametrize":
            first = ast.literal_eval(node.args[0])
            names |= {name.strip() for name in (first.split(",") if isinstance(first, str) else first)}
        elif isinstance(node, ast.Call) and _called(node.func) == "given":
            names |= {argument.arg for argument in function.args.args}
    return names


class _Known:
    """What is known to have elements: what is asserted outside of `loop`, and names of what has some."""

    def __init__(self, tree: ast.Module, function: ast.FunctionDef, loop: ast.AST) -> None:
        inside = set(ast.walk(loop))
        nodes = [node for node in (*tree.body, *ast.walk(function)) if node not in inside]
        asserted = {
            ast.dump(part)
            for node in nodes
            if isinstance(node, ast.Assert)
            for part in _parts(node.test)
            if part not in inside
        }
        self.asserted = asserted
        self.values: dict[str, ast.expr] = {}
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self.values[ast.unparse(target)] = node.value
        self.listed = _listed(function)
        counted = {ast.unparse(node.target) for node in inside if isinstance(node, ast.AugAssign)}
        self.is_counted = any(ast.dump(ast.Name(name, ast.Load())) in asserted for name in counted)

    def has_elements(self, node: ast.expr) -> bool:  # noqa: C901, PLR0911 - a case a kind of expression
        if ast.dump(node) in self.asserted:
            return True
        match node:
            case ast.Constant():
                return bool(node.value)
            case ast.List() | ast.Tuple() | ast.Set():
                return any(
                    self.has_elements(part.value) if isinstance(part, ast.Starred) else True
                    for part in node.elts
                )
            case ast.Dict():
                return bool(node.keys)
            case ast.BoolOp(op=ast.Or()):
                return self.has_elements(node.values[-1])
            case ast.BinOp(op=ast.Add() | ast.BitOr()):
                return self.has_elements(node.left) or self.has_elements(node.right)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return all(not part.ifs and self.has_elements(part.iter) for part in node.generators)
            case ast.Name():
                value = self.values.pop(node.id, None)  # popped: a name may be made of itself
                return node.id in self.listed or (value is not None and self.has_elements(value))
            case ast.Call():
                name = _called(node.func)
                given = node.args or ([node.func.value] if isinstance(node.func, ast.Attribute) else [])
                if name == "zip":  # strict, as the linter demands
                    return any(map(self.has_elements, given))
                return name in {"range", "split", "walk"} or (
                    name in KEEP_ELEMENTS and bool(given) and all(map(self.has_elements, given))
                )
        return False


def _loops(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Each loop that asserts for every element, a `for` or an asserted `all`, and what it runs over."""
    for node in ast.walk(function):
        if isinstance(node, ast.For) and any(isinstance(inner, ast.Assert) for inner in ast.walk(node)):
            yield node, node.iter
        elif isinstance(node, ast.Assert):
            for part in ast.walk(node.test):
                match part:
                    case ast.Call(func=ast.Name(id="all"), args=[ast.GeneratorExp() as every]):
                        yield part, every


def _empty_loops(source: str) -> list[int]:
    """Lines of loops of assertions that might run over nothing."""
    tree = ast.parse(source)
    return sorted(
        loop.lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for loop, over in _loops(function)
        for known in [_Known(tree, function, loop)]
        if not known.is_counted and not known.has_elements(over)
    )


def test_loops_of_assertions_have_something_to_loop_over():
    found = [
        f"{path.relative_to(TESTS)}:{line}: assert first that there is something to loop over"
        for path in sorted(TESTS.rglob("*.py"))
        for line in _empty_loops(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "body",
    [
        "for x in rows: assert x",
        "for x in list(rows): assert x",
        "for x in [y for y in (1, 2) if y > 2]: assert x",
        "assert all(x for x in rows)",
        "for x in rows: assert x, rows",
        "assert all(x for x in rows)\n  assert all(x > 1 for x in rows)",
        "assert rows.a\n  for x in rows.b: assert x",
    ],
)
def test_the_rule_sees_a_loop_that_may_be_empty(body):
    assert _empty_loops(f"def test(rows):\n  {body}\n")


@pytest.mark.parametrize(
    "body",
    [
        "for x in (1, 2): assert x",
        "for x in range(3): assert x",
        "for x in KNOWN: assert x",
        "for x in listed: assert x",
        "assert rows\n  for x in rows: assert x",
        "for x in rows: assert x\n  assert len(rows) == 3",
        "count = 0\n  for x in rows:\n    assert x\n    count += 1\n  assert count == 3",
        "assert len(rows.b) == 3\n  for x, y in zip(rows.b, rows.c, strict=True): assert x",
        "one = [y + 1 for y in KNOWN]\n  assert all(x for x in one)",
        "assert rows and all(x for x in rows)",
        "for x in rows: print(x)",
    ],
)
def test_the_rule_sees_what_has_elements(body):
    decorated = f"@pytest.mark.parametrize('listed', [[1]])\ndef test(rows, listed):\n  {body}\n"
    assert not _empty_loops(f"KNOWN = (1, 2)\n{decorated}")
