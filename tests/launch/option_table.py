"""What the tables of options say of printed text: names, values and combinations. For tests alone."""

import shlex
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent


def table(name):
    return tomllib.loads((FOLDER / f"{name}_options.toml").read_text())


def given(code):
    """Each option with its values; what is no option is under the empty name."""
    found = {"": []}
    name = ""
    for word in shlex.split(code.removeprefix("OPTIONS=(").removesuffix(")\n")):
        if word.startswith("--"):
            name = word[2:]
            assert name not in found, f"--{name} is given twice"
            found[name] = []
        elif ":" in word:  # a subcommand
            found[""].append(word)
        else:
            found[name].append(word)
    return found


def faults(code, rules):
    """What a table forbids in printed options."""
    options = given(code)
    found = [f"{word}: no subcommand" for word in options.pop("") if word not in rules.get("subcommands", ())]
    for name, values in options.items():
        known = rules["options"].get(name)
        if known is None:
            found.append(f"--{name}: unknown")
            continue
        found += _value_faults(name, values, known)
        found += [
            f"--{name} needs {other}" for other in known.get("needs", ()) if not _is_given(other, options)
        ]
        found += [
            f"--{name} excludes {other}" for other in known.get("excludes", ()) if _is_given(other, options)
        ]
    return found


def _value_faults(name, values, known):
    kind = known["kind"]
    if kind == "flag":
        return [f"--{name} takes no value"] if values else []
    if kind != "choices" and len(values) != 1:
        return [f"--{name} takes one value"]
    if kind == "int" and not values[0].isdecimal():
        return [f"--{name} {values[0]}: no whole number"]
    if kind in {"choice", "choices"}:
        return [f"--{name} {value}: no choice" for value in values if value not in known["choices"]]
    return []


def _is_given(rule, options):
    name, equals, value = rule.partition("=")
    return name in options and (not equals or options[name] == [value])
