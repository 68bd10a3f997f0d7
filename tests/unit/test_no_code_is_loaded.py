"""No file that is loaded can run code: the package has no call that unpickles, evaluates or starts a shell."""

import ast

import pytest
from support import ROOT

FILES = sorted(path for package in ("comera_dist", "data_prep", "launch") for path in (ROOT / package).rglob("*.py"))
# Modules whose reading of a file can run code in it.
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen"),
    *("torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "pd.read_pickle"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.Loader", "yaml.UnsafeLoader"),
    *("np.load", "numpy.load", "np.fromregex", "runpy.run_path"),  # np.load also unpickles if a caller lets it
}
UNSAFE_ARGUMENTS = {"shell", "allow_pickle", "trust_remote_code"}
# Runs a module of data_prep/, which lies beside or inside the package.
ALLOWED = {("comera_dist/commands/preparation.py", "runpy.run_module")}


def unsafe(tree: ast.AST) -> list[str]:
    """Names of the unsafe parts of a file."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name for name in names if name.partition(".")[0] in UNSAFE_MODULES or name in UNSAFE_CALLS]
        elif isinstance(node, ast.Call):
            found += [name for name in [ast.unparse(node.func)] if name in UNSAFE_CALLS or name == "runpy.run_module"]
            found += [keyword.arg for keyword in node.keywords if keyword.arg in UNSAFE_ARGUMENTS]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_unsafe_call(path):
    place = str(path.relative_to(ROOT))
    assert [name for name in unsafe(ast.parse(path.read_text())) if (place, name) not in ALLOWED] == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "from torch import load",
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "yaml.load(text, yaml.SafeLoader)",
        "subprocess.run(line, shell=True)",
        "datasets.load_dataset(name, trust_remote_code=True)",
        "eval(text)",
        "(lambda: exec(text))()",
    ],
)
def test_what_is_unsafe_is_found(code):
    assert unsafe(ast.parse(code))


def test_what_is_safe_is_not_found():
    assert unsafe(ast.parse("yaml.SafeLoader(text)\nmodel.eval()\nre.compile('x')\nnp.fromfile(path)")) == []
