"""The rules of the house, read from the source: who imports whom, and what gateways touch.

Nothing is imported; lazy imports inside functions count like those at the top.
"""

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "src" / "trainyard"
MODULES = sorted(LIBRARY.rglob("*.py"))
SCRIPTS = sorted([*(ROOT / "scripts").glob("*.py"), *(ROOT / "tools").glob("*.py")])
COMMANDS = sorted((LIBRARY / "commands").glob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# Its folder is on the path of programs, where any other module could be imported; it takes that off the path.
OBSERVER = [*(LIBRARY / "programs" / "observer").glob("*.py")]

POSITIONAL = 4
PURE = {"config", "run", "errors"}
SHARED = PURE | {"plan"}
# They may import every part.
EVERYWHERE = {
    *("checkpoint_functions", "commands", "deployment_checks", "pipeline", "program_training"),
    "proven_run_search",
    "run_choice",
    "training_elsewhere",
}
FACTS = {"artifacts", "cluster", "image", "jobs", "machine", "proof", "watch"}
MAY_IMPORT = {
    "": set(),
    "errors": set(),
    "__main__": {"commands"},
    "functions": {"checkpoint_functions", "command", "commands", "errors", "pipeline", "report"},
    "command": {"config", "errors", "run"},
    "config": {"errors"},
    "run": {"config", "errors"},
    "plan": PURE,
    "programs": PURE,
    "training": PURE,
    "artifacts": SHARED | {"programs"},
    "cluster": SHARED,
    "image": SHARED,
    "machine": SHARED,
    "watch": SHARED,
    "proof": SHARED | {"artifacts", "watch"},
    "jobs": SHARED | {"cluster", "programs", "watch"},
    "github": SHARED | {"proof"},
    "report": SHARED | FACTS,
    "gateways": {"errors"},
}
"""A part of the library -> other parts it may import: the design's list. Types may come from anywhere."""
ROOMS = {
    "training": "runtime model checkpoint weights data export run loop",
    "artifacts": "store record verify promotion upload restore retention",
    "image": "context conflict building release",
    "report": "facts dashboard plan cluster jobs terminal slack",
}
"""The rooms of a part, in the order in which they build on each other: a room imports only rooms before
it."""
ONLY_IN = {
    "torch": "training",
    "boto3": "gateways",
    "botocore": "gateways",
    "s3transfer": "gateways",
    "awscrt": "gateways",
    "kubernetes": "gateways",
    "slack_sdk": "gateways",
    "subprocess": "gateways",
    "rich": "command",
}
MAY_TOUCH = {
    "tools/draw_pictures.py": {"rich", "subprocess"},  # records a terminal, and draws its picture
    "src/trainyard/programs/integrations/lightning_callback.py": {"torch"},  # runs inside a trainer
}
IN_SOMEBODYS_PROGRAM = {
    "src/trainyard/__init__.py",
    "src/trainyard/programs/integrations/transformers_callback.py",
    "src/trainyard/programs/integrations/lightning_callback.py",
    *(str(path.relative_to(ROOT)) for path in OBSERVER),
}
"""Called in a training program of somebody else, where nothing of ours may raise an exception."""
PURE_PARTS = {"plan", "image", "cluster", "github", "machine", "jobs", "watch", "proof", "report"}
IMPURE = {
    *(
        "time.time",
        "time.monotonic",
        "time.sleep",
        "datetime.now",
        "os.environ",
        "os.getenv",
        "os.kill",
        "fcntl.flock",
    ),
    *("shutil.disk_usage", "subprocess.run", "socket.socket"),
}
HEAVY = {
    "torch",
    "numpy",
    "rich",
    "boto3",
    "tensorboard",
    "wandb",
    "tokenizers",
    "pyarrow",
    "datasets",
    "huggingface_hub",
}
OWN_SESSIONS = {"aws_session"}
SHARED_GATEWAYS = (
    *("process", "process_tree", "nvidia", "aws_session", "aws_refusals", "bounded_calls"),
    "http_requests",
)
MUTATORS = {
    "append",
    "extend",
    "insert",
    "add",
    "update",
    "setdefault",
    "pop",
    "popitem",
    "remove",
    "clear",
    "discard",
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part_of(path: Path) -> str:
    """The part of the library a module belongs to; empty for the package's own `__init__`."""
    first = path.relative_to(LIBRARY).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


REST = "command, machine, sweep, the root"
# Room -> the lines of Python that it may have: those of decision 0063. A room that shrinks takes the figure
# with it, and lines that move between rooms too. A decision record raises one, and says what people get.
BUDGETS = {
    "commands": 8_870,
    "training": 9_500,
    "gateways": 8_220,
    "jobs": 7_100,
    "artifacts": 6_620,
    "programs": 9_300,
    "report": 5_210,
    "image": 3_900,
    "cluster": 3_700,
    "github": 2_310,
    "run": 3_210,
    "plan": 2_500,
    "watch": 2_370,
    "config": 2_320,
    "proof": 2_790,
    REST: 4_480,
    "src": 82_160,
    "tests": 76_670,
}
SLACK = 60  # a figure may lie so far above what is there, so that not every small change edits the table

PARTS = {part_of(module) for module in MODULES} - {""}


@cache
def imported(path: Path) -> tuple[str, ...]:
    """The dotted names of everything that a module imports, with duplicates."""
    return tuple(imports(tree(path), path))


def imports(node: ast.AST, path: Path) -> Iterator[str]:
    """The dotted names of everything imported in `node`, `from x import y` as both `x` and `x.y`.

    Imports under TYPE_CHECKING are left out: a type may be named anywhere.
    """
    conditions = (n for n in ast.walk(node) if isinstance(n, ast.If))
    guards = (n for n in conditions if getattr(n.test, "id", "") == "TYPE_CHECKING")
    types = {inner for guard in guards for statement in guard.body for inner in ast.walk(statement)}
    for found in ast.walk(node):
        if found in types:
            continue
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            assert found.level == 0, f"{name_of(path)}:{found.lineno}: relative import"
            assert found.module is not None
            yield found.module
            yield from (f"{found.module}.{alias.name}" for alias in found.names)


def parts_imported(path: Path) -> set[str]:
    """The parts of the library that a module imports."""
    dotted = (name.split(".") for name in imported(path))
    return {names[1] for names in dotted if names[0] == "trainyard" and len(names) > 1 and names[1] in PARTS}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in nodes(path) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def over(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Make one test of a rule for each path; it names every path that breaks the rule."""

    def test_of(rule: Callable[[Path], None]) -> Callable[[], None]:
        @wraps(rule, assigned=("__module__", "__name__", "__doc__"))
        def test() -> None:
            broken = {}
            for path in paths:
                try:
                    rule(path)
                except AssertionError as error:
                    broken[name_of(path)] = str(error)
            assert broken == {}

        del test.__wrapped__  # pytest would ask for a fixture `path`
        return test

    return test_of


@over(MODULES)
def test_a_part_imports_only_the_parts_it_may(path: Path) -> None:
    part = part_of(path)
    if part in EVERYWHERE:
        return
    assert part in MAY_IMPORT, f"{part} has no row in the table of allowed imports"
    assert parts_imported(path) - {part} - MAY_IMPORT[part] == set()


def unit_of(module: str) -> str:
    """The room that a module is in; a module beside the rooms of its part is a unit of its own."""
    return ".".join(module.split(".")[:2])


@cache
def units_imported() -> dict[str, set[str]]:
    """Every room -> the rooms that its modules import."""
    dotted = {
        path: path.relative_to(LIBRARY).as_posix().removesuffix(".py").replace("/", ".") for path in MODULES
    }
    known = {name.removesuffix(".__init__") for name in dotted.values()}
    found: dict[str, set[str]] = {}
    for path, module in dotted.items():
        names = {name.removeprefix("trainyard.") for name in imported(path)} & known
        modules = {name for name in names if not (LIBRARY / name.replace(".", "/")).is_dir()}
        unit = unit_of(module)
        found.setdefault(unit, set()).update({unit_of(name) for name in modules} - {unit})
    return found


def test_no_room_imports_itself_through_others() -> None:
    left = dict(units_imported())
    while free := [unit for unit, others in left.items() if not others & left.keys()]:
        for unit in free:
            del left[unit]
    assert {unit: sorted(others & left.keys()) for unit, others in left.items()} == {}


def test_no_module_imports_itself_through_others() -> None:
    """Imports under TYPE_CHECKING and inside functions count, because a reader follows them too."""
    names = {
        path: "trainyard." + path.relative_to(LIBRARY).as_posix()[:-3].replace("/", ".") for path in MODULES
    }
    names = {path: name.removesuffix(".__init__") for path, name in names.items()}
    left: dict[str, set[str]] = {}
    for path, name in names.items():
        found = {
            f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in names.values() else node.module
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        left[name] = set(names.values()).intersection(filter(None, found)) - {name}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert {name: sorted(others & left.keys()) for name, others in left.items()} == {}


@pytest.mark.parametrize("part", ROOMS)
def test_a_room_imports_only_the_rooms_before_it(part: str) -> None:
    order = [f"{part}.{room}" for room in ROOMS[part].split()]
    later = {
        (room, other)
        for place, room in enumerate(order)
        for other in units_imported().get(room, set())
        if other in order[place:]
    }
    assert later == set()


@pytest.mark.parametrize("part", ROOMS)
def test_every_room_has_its_place_in_the_order(part: str) -> None:
    rooms = {path.parent.name for path in (LIBRARY / part).glob("*/__init__.py")}
    assert rooms - set(ROOMS[part].split()) == set()


def lines_of_rooms() -> dict[str, int]:
    """The lines of Python of each room in BUDGETS."""
    counts = dict.fromkeys(BUDGETS, 0)
    for path in [*MODULES, *TESTS]:
        lines = path.read_text(encoding="utf-8").count("\n")
        if path in MODULES:
            part = part_of(path)
            counts[part if part in BUDGETS else REST] += lines
            counts["src"] += lines
        else:
            counts["tests"] += lines
    return counts


def test_a_room_keeps_its_budget_or_shrinks() -> None:
    wrong = []
    print(f"\n{'room':<36}{'lines':>8}{'budget':>8}")  # pytest -s shows it
    for room, lines in lines_of_rooms().items():
        budget = BUDGETS[room]
        print(f"{room:<36}{lines:>8,}{budget:>8,}")
        if lines > budget:
            wrong.append(f"{room} has {lines:,} lines, at most {budget:,} are granted")
        if lines < budget - SLACK:
            wrong.append(f"{room} shrank to {lines:,} lines: write {lines:,} into BUDGETS")
    assert wrong == []


FOLDERS = sorted({path.parent for path in MODULES} - {OBSERVER[0].parent})


@over(FOLDERS)
def test_a_room_says_what_lives_there_and_re_exports_nothing(folder: Path) -> None:
    init = folder / "__init__.py"
    assert init in MODULES, "a room has an __init__.py with a docstring"
    assert is_registry(init) or imported(init) == ()


def is_registry(init: Path) -> bool:
    """Whether an `__init__.py` holds a list or functions of its own: a registry of the modules beside it."""
    named = [n for n in tree(init).body if isinstance(n, ast.Assign | ast.AnnAssign | ast.FunctionDef)]
    return any("__all__" not in ast.unparse(n) for n in named)


def test_a_file_name_stands_for_one_thing() -> None:
    names = [path.name for path in MODULES if path.name != "__init__.py" and path not in COMMANDS]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@over([p for p in MODULES if part_of(p) in PURE_PARTS])
def test_a_pure_part_asks_no_clock_and_no_machine(path: Path) -> None:
    """Clocks, locks, processes and the environment are read in gateways, or handed in."""
    asked = {
        ast.unparse(node)
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in IMPURE
    }
    defaults = {
        ast.unparse(value)
        for function in functions(path)
        for value in (*function.args.defaults, *function.args.kw_defaults)
        if value is not None
    }
    assert asked - defaults == set()


@over([p for p in MODULES if part_of(p) == "gateways"])
def test_a_gateway_knows_no_other_gateway_but_the_shared_ones(path: Path) -> None:
    gateway = path.relative_to(LIBRARY / "gateways").parts[0].removesuffix(".py")
    dotted = (name.split(".") for name in imported(path) if name.startswith("trainyard.gateways."))
    known = {p.name.removesuffix(".py") for p in (LIBRARY / "gateways").iterdir()}
    assert {names[2] for names in dotted if names[2] in known} <= {gateway, *SHARED_GATEWAYS}


@over([p for p in MODULES if part_of(p) == "gateways" and p.stem not in OWN_SESSIONS])
def test_every_session_of_aws_knows_the_role_of_a_workflow(path: Path) -> None:
    made = {"boto3.client", "boto3.resource", "boto3.Session", "boto3.session.Session"}
    made |= {"botocore.session.Session", "botocore.session.get_session", "get_session"}
    assert {ast.unparse(n.func) for n in nodes(path) if isinstance(n, ast.Call)} & made == set()


@over([*MODULES, *SCRIPTS])
def test_the_outside_world_and_torch_are_touched_in_their_place_only(path: Path) -> None:
    part = part_of(path) if path.is_relative_to(LIBRARY) else "scripts"
    tops = {name.split(".")[0] for name in imported(path)}
    elsewhere = {top for top in tops if ONLY_IN.get(top, part) != part}
    assert elsewhere - MAY_TOUCH.get(name_of(path), set()) == set()


@over([module for module in MODULES if module.name != "yaml_reader.py"])
def test_one_module_reads_yaml(path: Path) -> None:
    names = {ast.unparse(node) for node in nodes(path) if isinstance(node, ast.Attribute)}
    read = ("load", "safe_load", "load_all", "safe_load_all", "compose", "compose_all", "parse")
    assert not names & {f"yaml.{name}" for name in read}


@over([*MODULES, *SCRIPTS, *BENCHMARKS])
def test_every_module_says_what_it_is_about(path: Path) -> None:
    assert ast.get_docstring(tree(path)), "no module docstring"


@over([*MODULES, *SCRIPTS, *BENCHMARKS, *TESTS])
def test_no_module_is_named_for_nothing(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc"}


@over([*MODULES, *SCRIPTS])
def test_functions_take_few_positional_parameters(path: Path) -> None:
    counts = {f.name: [a.arg for a in (*f.args.posonlyargs, *f.args.args)] for f in functions(path)}
    wide = {
        name: names
        for name, names in counts.items()
        if len([n for n in names if n not in ("self", "cls")]) > POSITIONAL
    }
    assert wide == {}, f"more than {POSITIONAL} positional parameters"


@over([*MODULES, *SCRIPTS])
def test_only_the_top_level_handler_catches_everything(path: Path) -> None:
    hands_on = {"src/trainyard/gateways/bounded_calls.py"}  # the exception of a thread to the one that waits
    if path.parent == LIBRARY / "command" or name_of(path) in IN_SOMEBODYS_PROGRAM | hands_on:
        return
    for handler in (n for n in nodes(path) if isinstance(n, ast.ExceptHandler)):
        caught = "" if handler.type is None else ast.unparse(handler.type)
        broad = {"", "Exception", "BaseException"} & set(caught.strip("()").split(", "))
        assert not broad, f"{name_of(path)}:{handler.lineno}: except {caught}"


@over([module for module in MODULES if module not in COMMANDS])
def test_the_library_does_not_print(path: Path) -> None:
    calls = (n for n in nodes(path) if isinstance(n, ast.Call))
    assert [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"] == []


@over([each for each in (*MODULES, *SCRIPTS) if each not in OBSERVER])
def test_nobody_edits_the_import_path(path: Path) -> None:
    found = (n for n in nodes(path) if isinstance(n, ast.Attribute) and n.attr == "path")
    assert [n.lineno for n in found if isinstance(n.value, ast.Name) and n.value.id == "sys"] == []


@over([*MODULES, *SCRIPTS])
def test_no_module_level_state_is_changed(path: Path) -> None:
    names = {
        target.id
        for statement in tree(path).body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        if isinstance(target, ast.Name)
    }
    assert [f"line {n.lineno}" for n in nodes(path) if isinstance(n, ast.Global)] == []
    assert [ast.unparse(n) for n in nodes(path) if changes_one_of(n, names)] == []


def changes_one_of(node: ast.AST, names: set[str]) -> bool:
    """Whether `node` writes into, or calls a mutating method on, one of the module's own names."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return isinstance(node.value, ast.Name) and node.value.id in names
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        return isinstance(node.func.value, ast.Name) and node.func.value.id in names
    return False


# What starts `trainyard` as a process: the training, and the containers of a cluster. The completion has the
# parser of a command shown.
STARTS = {
    "src/trainyard/pipeline.py",
    "src/trainyard/jobs/recipes.py",
    "src/trainyard/jobs/kinds/ray_cluster.py",
    "src/trainyard/commands/completion.py",
}


@over(MODULES)
def test_no_module_calls_a_command_of_the_product_by_a_command_line(path: Path) -> None:
    """Functions are the inside interface: they take typed values, which mypy checks."""
    found = [ast.unparse(node)[:80] for node in nodes(path) if is_command_line(node)]
    assert found == [] or name_of(path) in STARTS


def is_command_line(node: ast.AST) -> bool:
    """Whether `node` gives a list of words to a command's `main` or parser, or starts `-m trainyard`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        words = any(isinstance(inner, ast.List) for word in node.args for inner in ast.walk(word))
        return node.func.attr in ("main", "parse_args") and words
    if not isinstance(node, ast.List | ast.Tuple):
        return False
    each = [word.value if isinstance(word, ast.Constant) else None for word in node.elts]
    return any(pair == ("-m", "trainyard") for pair in itertools.pairwise(each))


@pytest.mark.parametrize(
    "source",
    [
        'prove.main(["--run-dir", run])',
        'cluster.main(["check", *words])',
        "notify.parse_args([event, *words])",
        'subprocess.run([sys.executable, "-P", "-m", "trainyard", "prove"])',
        'step("-m", *("-m", "trainyard"))',
    ],
)
def test_the_rule_on_command_lines_notices_them(source: str) -> None:
    assert any(is_command_line(node) for node in ast.walk(ast.parse(source)))


# Jobs of hosted runners call these without any package; only what posts to Slack needs one.
WITHOUT_PACKAGES = ("step_watch_runners", "step_continue")


@over([command for command in COMMANDS if command.stem not in WITHOUT_PACKAGES])
def test_a_command_imports_at_its_top_all_but_what_is_slow(path: Path) -> None:
    """`trainyard NAME --help` takes half a second; the trainer's modules import torch or numpy."""
    inside = {name for function in functions(path) for name in imports(function, path)}
    slow = {name for name in inside if name.split(".")[0] in HEAVY or name.startswith("trainyard.training")}
    assert inside - slow == set(), "belongs at the top of the module"
    top = {name.split(".")[0] for name in set(imported(path)) - inside}
    assert top & HEAVY == set(), "belongs inside the function that uses it"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("GROWS = {}\ndef f():\n    GROWS['x'] = 1\n", "GROWS"),
        ("SEEN = []\ndef f():\n    SEEN.append(1)\n", "SEEN"),
    ],
)
def test_the_rule_on_state_notices_state(source: str, name: str) -> None:
    assert any(changes_one_of(node, {name}) for node in ast.walk(ast.parse(source)))
