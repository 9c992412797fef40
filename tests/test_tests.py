"""Rules for the tests themselves: a loop of assertions has something to loop over; no test matches prose."""

import ast
import re
from collections.abc import Iterable, Iterator
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
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


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


# --- text that the program prints is matched by keys, numbers and names

# Three words in a row are prose. A list of names with commas is not, nor is a word with a digit, "_", "-", "/" or ".".
PROSE = re.compile(
    r"(?<![\w/.-])(?!\w+, \w+, )[A-Za-z][a-z']+[,;:]? (?:a|[A-Za-z][a-z']+)[,;:]? (?:a|[a-z][a-z']+)(?![\w/-])"
)
# Functions and methods whose first argument is looked for in a text, and keywords whose value is.
SEARCHES = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "count", "find"),
    *("index", "search", "match", "fullmatch", "findall", "finditer", "get_by_text"),
}
SEARCHED = {"match", "has_text"}
# Calls that give on the texts that they are given.
KEEP_TEXTS = KEEP_ELEMENTS | {"escape", "compile", "replace", "format", "join", "lower", "zip", "chain"}
# What is not the program's wording though it looks so: values of fields, and texts of others.
NOT_PROSE = {
    "not enough evidence",  # verdict of a claim
    "mixture of experts",  # architecture of a workload
    "2 servers x 4 GPUs InfiniBand (model in issue)",  # hardware column of the development data
    'a "quoted"\\ name\nin two lines',  # name that a test gives
}


class _Texts:
    """The texts that expressions in a function may stand for: constants, also by name."""

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        """`nodes`: those of the function, after statements of the module."""
        self.named: dict[str, list[ast.expr]] = {}
        for node in nodes:
            match node:
                case ast.Assign(targets=[target], value=value):
                    self._bind(target, value)
                case ast.For(target=target, iter=values) | ast.comprehension(target=target, iter=values):
                    self._bind_each(target, values)
                case ast.Call(args=[names, values, *_]) if _called(node.func) == "parametrize":
                    names = ast.literal_eval(names)
                    names = names if isinstance(names, str) else ", ".join(names)
                    self._bind_each(ast.parse(names, mode="eval").body, values)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.named.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple):
            parts = value.elts if isinstance(value, ast.Tuple) else []
            same = len(parts) == len(target.elts)
            for place, part in enumerate(target.elts):
                self._bind(part, parts[place] if same else value)

    def _bind_each(self, target: ast.expr, values: ast.expr) -> None:
        """Bind a target to each element of values."""
        for row in self._rows(values):
            match row:
                case ast.Starred(value=inner):
                    self._bind_each(target, inner)
                case ast.Call(args=cells) if _called(row.func) == "param":
                    self._bind(target, cells[0] if len(cells) == 1 else ast.Tuple(cells))
                case _:
                    self._bind(target, row)

    def _rows(self, values: ast.expr, seen: frozenset[str] = frozenset()) -> Iterator[ast.expr]:
        """The elements of values as far as they are written out; else values themselves."""
        match values:
            case ast.List() | ast.Tuple() | ast.Set():
                yield from values.elts
            case ast.Dict():
                yield from (
                    ast.Tuple([key, value]) if key else value
                    for key, value in zip(values.keys, values.values, strict=True)
                )
            case ast.Call(func=ast.Attribute(value=inner, attr="items")):
                yield from self._rows(inner, seen)
            case ast.ListComp() | ast.GeneratorExp():
                yield values.elt
            case ast.Name() if values.id in self.named and values.id not in seen:
                for value in tuple(self.named[values.id]):
                    yield from self._rows(value, seen | {values.id})
            case _:
                yield values

    def of(  # noqa: C901 - a case a kind of expression
        self, node: ast.AST, seen: frozenset[str] = frozenset()
    ) -> Iterator[tuple[int, str]]:
        """Line and text of each constant that the value may be made of."""
        match node:
            case ast.Constant(value=str() as text):
                yield node.lineno, text
            case ast.JoinedStr():
                parts = (part.value if isinstance(part, ast.Constant) else "0" for part in node.values)
                yield node.lineno, "".join(map(str, parts))
            case ast.Name() if node.id not in seen:
                for value in self.named.get(node.id, ()):
                    yield from self.of(value, seen | {node.id})
            case ast.Call():
                if _called(node.func) in KEEP_TEXTS:
                    first = [node.func.value] if isinstance(node.func, ast.Attribute) else []
                    for part in (*first, *node.args):
                        yield from self.of(part, seen)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                yield from self.of(node.elt, seen)
            case ast.Attribute() | ast.Subscript() | ast.Lambda() | ast.Compare():
                pass
            case _:
                for part in ast.iter_child_nodes(node):
                    yield from self.of(part, seen)


def _expected(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Expressions that what the program gives is compared with, or that are looked for in it."""
    for node in nodes:
        match node:
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[text]):
                yield node.left
                if isinstance(text, ast.Tuple | ast.List | ast.Set):
                    yield text
            case ast.Compare():
                yield from (node.left, *node.comparators)
            case ast.Call():
                yield from (keyword.value for keyword in node.keywords if keyword.arg in SEARCHED)
                if _called(node.func) in SEARCHES:
                    yield from node.args[:1]


def _prose(source: str) -> set[tuple[int, str]]:
    """Line and text of each piece of prose that tests of a module match."""
    tree = ast.parse(source)
    return {
        (line, text)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for nodes in [list(ast.walk(function))]
        for texts in [_Texts((*tree.body, *nodes))]
        for expected in _expected(nodes)
        for line, text in texts.of(expected)
        if PROSE.search(text)
    }


def test_no_test_matches_prose():
    found = [
        (f"{path.relative_to(TESTS)}:{line}: {text!r}", text)
        for path in sorted(TESTS.rglob("*.py"))
        for line, text in sorted(_prose(path.read_text()))
    ]
    wrong = [place for place, text in found if text not in NOT_PROSE]
    assert not wrong, "\n".join(("Match keys, numbers and names, not sentences:", *wrong))
    assert {text for _, text in found} == NOT_PROSE


@pytest.mark.parametrize(
    "body",
    [
        "assert 'the file cannot be read' in found",
        "assert found == 'the file cannot be read'",
        "assert f'{name}: the file cannot be read' not in found",
        "assert found.startswith('the file cannot')",
        "with pytest.raises(ValueError, match=r'a\\.txt: the file cannot'): found()",
        "assert re.search('the file cannot', found)",
        "for words in ('a', 'the file cannot be read'): assert words in found",
        "words = 'the file cannot be read'\n  assert words in found",
        "assert all(words in found for words in KNOWN)",
        "assert listed in found",
        "assert {'reason': 'the file cannot be read'} == found",
        "assert any('the file cannot be read' in each for each in found)",
        "page.locator('h1', has_text='the file cannot')",
    ],
)
def test_the_rule_sees_prose(body):
    decorated = f"@pytest.mark.parametrize(('given', 'listed'), [(1, 'x'), pytest.param(2, 'the file cannot be')])\ndef test(given, listed):\n  {body}\n"
    assert _prose(f"KNOWN = ('x', 'the file cannot be read')\n{decorated}")


@pytest.mark.parametrize(
    "body",
    [
        "assert 'a.txt:3: ' in found",
        "assert re.search(r'a\\.txt: .*bytes', found)",
        "assert found('the file cannot be read') == 3",
        "text = 'the file cannot be read'\n  assert '3' in found(text)",
        "assert found['the file cannot be read'] == 3",
        "assert 'dp, tp, pp' in found",
        "assert found == 'NVIDIA H100 SXM5 80 GB'",
        "print('the file cannot be read')",
    ],
)
def test_the_rule_sees_what_is_no_prose(body):
    assert not _prose(f"def test(found):\n  {body}\n")
