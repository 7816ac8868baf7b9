"""What the command line does before anything is computed: quick, complete, and without heavy imports."""

import json
import shutil
import subprocess
import sys

import pytest

from fedjax_sim.cli import list_names as names
from fedjax_sim.cli import main as cli
from fedjax_sim.cli import options
from fedjax_sim.core.descriptions import all_registered, registered_factory
from tests.processes import environment, printed

HEAVY = ["jax", "jaxlib", "flax", "optax", "chex", "numpy", "matplotlib", "rich"]
LIGHT = [
    ["--help"],
    ["--version"],
    ["list"],
    ["list", "algorithm"],
    ["run", "--help"],
    ["demo", "--help"],
    ["init", "-"],
    ["algorithms"],
    ["compare", "--help"],
    ["sweep", "--help"],
    ["tune", "--help"],
    ["data", "describe", "--help"],
    ["doctor", "--help"],
]
CALLS = """
import contextlib, io, json, sys
from fedjax_sim.cli.main import main
said = {}
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(arguments)
    said[" ".join(arguments)] = out.getvalue()
heavy = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
print(json.dumps({"said": said, "heavy": heavy}))
"""


def test_help_version_lists_and_completion_import_nothing_heavy():
    pytest.importorskip("shtab")
    calls = [*LIGHT, ["--print-completion", "bash"]]
    answer = json.loads(printed("-c", CALLS, json.dumps(calls), json.dumps(HEAVY)))
    assert answer["heavy"] == []
    said = answer["said"]
    assert all(said.values()), said
    assert "fedprox" in said["list"]
    assert "fednova" in said["list algorithm"]
    assert "fednova" in said["algorithms"]
    assert "--processes" in said["run --help"]
    assert "--seat" not in said["run --help"]
    assert "[algorithm]" in said["init -"]
    assert "--checkpoint" in said["--print-completion bash"]


def test_the_names_are_those_that_the_package_registers():
    found = names.registered_names()
    ours = [name for name in all_registered() if registered_factory(name).__module__.startswith("fedjax_sim.")]
    assert [one.name for one in found] == ours
    assert sum(bool(one.what) for one in found) > 0.9 * len(found)


def test_one_name_is_explained(capsys):
    assert cli.main(["list", "algorithm.fedprox"]) == 0
    said = capsys.readouterr().out
    assert "    mu = 1.0\n" in said
    assert "Li et al." in said
    assert cli.main(["list", "MLP"]) == 0
    said = capsys.readouterr().out
    assert "hidden = (200, 200)" in said
    assert "parent" not in said.partition("\n\n")[0]
    assert cli.main(["list", "algorithm.fedprocks"]) == 2
    assert "did you mean 'algorithm.fedprox'?" in capsys.readouterr().err


@pytest.mark.parametrize("shell", options.SHELLS)
def test_completion_scripts(shell, capsys):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as ended:
        cli.main(["--print-completion", shell])
    assert not ended.value.code
    script = capsys.readouterr().out
    for name in ("fedprox", "scaffold"):  # of compare --algorithms, and of algorithms
        assert script.count(f" {name}") >= 2
    for word in ("verify", "processes", "markdown", "init", "compare", "variant", "describe", "doctor"):
        assert word in script
    assert shell == "tcsh" or "--seat" not in script
    if shell != "tcsh" and shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_the_files_that_shtab_completes_are_spelled_as_it_does():
    shtab = pytest.importorskip("shtab")
    for shell in options.SHELLS:
        assert options.FILES[shell] == shtab.FILE[shell]
        assert options.FOLDERS[shell] == shtab.DIRECTORY[shell]


def test_without_shtab_the_error_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["--print-completion", "bash"])
    assert ended.value.code == 1
    assert "pip install 'fedjax_sim[completion]'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m fedjax_sim.cli list algorithm | head -n 1"
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    done = subprocess.run(
        [bash, "-c", f"set -o pipefail; {command}"], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("adaptively_clipped")
    assert done.returncode in (0, 128 + 13)
    assert done.stderr == ""
