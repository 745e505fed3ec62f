"""The command line as a user meets it: text, JSON, exit codes, refusals, Ctrl-C, and how long it takes."""

import json
import signal
import subprocess
import sys
import time

import pytest

import attnbook
from attnbook import cli
from attnbook.inputs import INPUT_FAMILIES
from attnbook.ladder import LADDER
from attnbook.machine import detect
from ptxemu.export import from_chrome

NO_GPU = pytest.mark.skipif(detect().gpu is not None, reason="there is a GPU that runs the kernels")


def start(*arguments, **options):
    command = [sys.executable, "-m", "attnbook.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def attnbook_(*arguments):
    """(exit code, standard output, standard error) of a process of its own."""
    process = start(*arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


# ---- help ------------------------------------------------------------------------------------------------------------


def test_help_is_instant_and_imports_nothing_large():
    code = (
        "import sys, attnbook.cli\n"
        "try: attnbook.cli.main(['run', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'cutlass', 'numpy', 'ptxemu'} & set(sys.modules), sorted(sys.modules)"
    )
    started = time.perf_counter()
    text = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert time.perf_counter() - started < 2.0  # 0.1 s on a quiet machine
    assert all(family.name in text for family in INPUT_FAMILIES.values() if not family.causal)
    assert all(stage.slug in text for stage in LADDER.implemented)
    for option in ("--stage", "--batch", "--heads", "--seqlen", "--dtype", "--input", "--scale", "--lse", "--seed"):
        assert option in text
    for option in ("--trace", "--json", "--schedule", "--schedule-seed", "--device", "--quiet", "exit codes"):
        assert option in text


def test_without_a_command_it_helps(capsys):
    assert cli.main([]) == 0
    assert "doctor" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == f"attnbook {attnbook.__version__}\n"


# ---- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_in_words_and_in_json():
    code, text, err = attnbook_("doctor")
    assert code == 0 and err == "" and "Kernels run here" in text and "backend" in text
    code, text, _ = attnbook_("doctor", "--json")
    plain = json.loads(text)
    assert code == 0 and plain["ok"] and plain["schema"] == "attnbook.doctor/1"
    assert plain["backend"] in ("emulator", "blackwell", "hopper") and "baseline" in plain["stages"]
    assert {check["state"] for check in plain["checks"]} <= {"ok", "note", "missing"}


def test_doctor_fails_when_something_needed_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("attnbook.doctor.version_of", lambda package: None)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "Kernels do not run here yet" in out and "mend it with:" in out


# ---- run -------------------------------------------------------------------------------------------------------------

pytest.importorskip("torch")


def test_run_prints_json_and_nothing_else():
    """The whole process: what a script or a reader waits for. 3 s on 2 quiet cores; the bound here is for busy ones."""
    started = time.perf_counter()
    code, out, err = attnbook_("run", "--stage", "1", "--batch", "1", "--heads", "2", "--seqlen", "512", "--json", "-")
    seconds = time.perf_counter() - started
    assert (code, err) == (0, "")
    plain = json.loads(out)
    assert plain["schema"] == "attnbook.run/1" and plain["verdict"]["ok"] and plain["verdict"]["rows"] == 1024
    assert plain["verdict"]["error"] <= plain["verdict"]["allowed"] < 0.01
    assert plain["problem"]["heads"] == 2 and plain["problem"]["scale"] == pytest.approx(128**-0.5)
    assert seconds < 15.0


def test_run_in_words_with_files(tmp_path, capsys):
    trace, result = tmp_path / "trace.json", tmp_path / "result.json"
    arguments = ["--stage", "baseline", "--seqlen", "128", "--dtype", "fp16", "--input", "outlier_last", "--seed", "3"]
    code = cli.main(["run", *arguments, "--scale", "0.1", "--lse", "--trace", str(trace), "--json", str(result)])
    out = capsys.readouterr().out
    assert code == 0 and "verdict       right" in out and "fp16, scale 0.1; input outlier_last, seed 3" in out
    assert "lse" in out and "emulat" in out
    plain = json.loads(result.read_text())
    assert plain["input"] == {"family": "outlier_last", "seed": 3} and plain["verdict"]["lse_error"] is not None
    from ptxemu import Trace

    events = Trace.from_json(trace.read_text()).events
    assert {"softmax", "epilogue"} <= {event.name for event in events}


@NO_GPU
def test_run_under_an_adversarial_schedule(capsys):
    arguments = ["run", "--stage", "1", "--seqlen", "128", "--schedule", "adversarial", "--schedule-seed", "4"]
    assert cli.main(arguments) == 0
    assert "right" in capsys.readouterr().out


BAD = {
    "stage": (["--stage", "swizle"], "stage 'swizle' is not on the ladder"),
    "unwritten stage": (["--stage", "22"], "stage 22 (publish_early) has no kernel"),
    "length": (["--stage", "1", "--seqlen", "500"], "seqlen = 500"),
    "heads": (["--heads", "0"], "heads = 0"),
    "input": (["--input", "gauss"], "input family 'gauss' is not known; take one of: normal"),
    "causal input": (["--input", "masked_rows"], "needs a causal kernel"),
    "scale": (["--scale", "nan"], "scale = nan"),
    "folder": (["--json", "/no/such/folder/x.json"], "there is no folder /no/such/folder"),
    "trace folder": (["--trace", "/no/such/folder/x.json"], "there is no folder /no/such/folder"),
    "both": (["--device", "gpu", "--schedule", "fair"], "are the emulator's"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_code_2(name, capsys):
    arguments, words = BAD[name]
    assert cli.main(["run", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("attnbook: ") and words in err and "Traceback" not in err


@pytest.mark.parametrize("arguments", [["--seqlen", "many"], ["--dtype", "fp8"], ["--device", "cpu"]])
def test_what_argparse_refuses_has_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["run", *arguments])
    assert end.value.code == 2 and "usage: attnbook run" in capsys.readouterr().err


@NO_GPU
def test_no_gpu_has_code_2(capsys):
    assert cli.main(["run", "--device", "gpu"]) == 2
    assert "needs a Blackwell GPU" in capsys.readouterr().err


def test_a_wrong_answer_has_code_1(capsys, monkeypatch, tmp_path):
    """The rule must reach the exit code: compare with the answer to another scale."""
    import attnbook.reference as reference
    import attnbook.run  # noqa: F401

    def other_scale(o, lse, q, k, v, *, scale, causal):
        return reference.check(o, lse, q, k, v, scale=1.01 * scale, causal=causal)

    monkeypatch.setattr(sys.modules["attnbook.run"], "check", other_scale)
    path = tmp_path / "x.json"
    assert cli.main(["run", "--stage", "1", "--seqlen", "128", "--json", str(path)]) == 1
    assert "WRONG" in capsys.readouterr().out
    assert json.loads(path.read_text())["verdict"]["ok"] is False


def test_a_kernel_that_breaks_a_rule_has_code_1(capsys, monkeypatch):
    import attnbook.run  # noqa: F401
    from ptxemu import DeadlockError

    def stuck(*_, **__):
        raise DeadlockError("warp 0 waits on s_full")

    monkeypatch.setattr(sys.modules["attnbook.run"], "execute", stuck)
    assert cli.main(["run", "--stage", "1", "--seqlen", "128"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "DeadlockError: warp 0 waits on s_full" in err


@NO_GPU
def test_a_long_run_shows_progress_and_ctrl_c_ends_it_cleanly():
    process = start("run", "--stage", "1", "--heads", "64", "--seqlen", "1024")  # 20 s of emulation
    seen = ""
    while "CTA" not in seen:
        seen += process.stderr.read(1)
        assert process.poll() is None, seen
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out == ""
    assert "emulating" in seen and "attnbook: interrupted" in err and "Traceback" not in err


def test_a_reader_that_goes_away_is_no_error():
    process = start("run", "--stage", "1", "--seqlen", "128")
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(60) in (0, -signal.SIGPIPE) and "Traceback" not in err


# ---- the progress bar ------------------------------------------------------------------------------------------------


class Terminal:
    """A standard error that is a terminal, as far as tqdm looks."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


@pytest.mark.parametrize(("patience", "shown"), [(0.0, True), (60.0, False)])
def test_the_bar_appears_only_after_a_while(patience, shown, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(cli, "PATIENCE", patience)
    with cli._Bar(quiet=False) as bar:
        for done in range(5):
            bar.update(done, 4)
            time.sleep(0.12)
    assert ("CTA" in terminal.text) == shown


def test_a_quiet_bar_is_silent(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(cli, "PATIENCE", 0.0)
    with cli._Bar(quiet=True) as bar:
        bar.update(1, 4)
    assert terminal.text == ""


def test_clock_prints_a_line_for_each_stage_and_the_same_as_json(capsys, tmp_path):
    assert cli.main(["clock", "--stage", "1", "--stage", "swizzle", "--json", str(tmp_path / "clock.json")]) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "clock.json").read_text())
    assert "modelled" in out and [row["slug"] for row in found["stages"]] == ["baseline", "swizzle"]
    for row in found["stages"]:
        assert f"{row['cycles_per_product']:,.0f}" in out
    assert cli.main(["clock", "--stage", "1", "--chip", "RTX"]) == 2
    assert "the clock has a table for" in capsys.readouterr().err


@pytest.mark.parametrize("name, reader", [("t.json", "chrome"), ("t.pftrace", "perfetto")])
def test_trace_writes_what_the_name_asks_for(capsys, tmp_path, name, reader):
    assert cli.main(["trace", "--stage", "1", "--out", str(tmp_path / name)]) == 0
    assert f"events in cycles, for {reader}" in capsys.readouterr().out
    data = (tmp_path / name).read_bytes()
    if reader == "chrome":
        assert from_chrome(data.decode()).meta["chip"] == "B200"
    else:
        assert b"softmax" in data and b"tensor" in data


def test_trace_asks_for_a_format_it_knows(capsys, tmp_path):
    assert cli.main(["trace", "--stage", "1", "--out", str(tmp_path / "t.xyz")]) == 2
    assert "--format" in capsys.readouterr().err
