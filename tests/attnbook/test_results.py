"""Recorded results: what is accepted, what is refused and in which words."""

import copy
import json

import pytest

from attnbook.results import SCHEMA, InvalidRecord, Provenance, load, load_all, results_dir, save, validate

MEASURED = {
    "schema": SCHEMA,
    "provenance": "measured",
    "source": "attnbook record --stage 1",
    "date": "2026-12-01",
    "machine": {"name": "node 7", "gpu": "NVIDIA B200", "driver": "580.82", "cuda": "13.0", "clocks_mhz": {"sm": 1850}},
    "versions": {"torch": "2.13.0", "nvidia-cutlass-dsl": "4.8.1"},
    "revision": "c425298",
    "url": "",
    "note": "",
    "entries": [
        {
            "quantity": "throughput",
            "unit": "TFLOPS",
            "subject": "baseline",
            "shape": {"batch": 8, "heads": 16, "seqlen": 4096, "head_dim": 128, "dtype": "bf16", "causal": False},
            "value": 211.0,
            "low": 210.0,
            "high": 212.5,
            "repeats": 30,
        }
    ],
}


def changed(path, value):
    """MEASURED with one thing replaced, or taken out where value is None."""
    raw = copy.deepcopy(MEASURED)
    *outer, last = path
    inner = raw
    for key in outer:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return raw


def test_a_good_record_comes_back_the_same(tmp_path):
    record = validate(MEASURED)
    assert record.provenance is Provenance.MEASURED and record.entries[0].value == 211.0
    assert record.label == "measured, NVIDIA B200, 2026-12-01"
    path = save(record, tmp_path / "results" / "b200.json")
    assert json.loads(path.read_text()) == MEASURED
    assert load(path) == record and load_all(path.parent) == {"b200": record}
    assert path.read_text() == load(path).to_json()


E0 = ("entries", 0)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("schema",), "attnbook.results/9", "this reads 'attnbook.results/1'"),
        (("provenance",), "guessed", "take one of: measured, modelled, published"),
        (("source",), " ", "source is missing"),
        (("date",), "1.12.2026", "must be like 2026-12-01"),
        (("date",), "2026-13-01", "must be like 2026-12-01"),
        (("colour",), "red", "'colour' is not a field"),
        (("machine", "driver"), None, "machine has no 'driver'"),
        (("machine", "clocks_mhz"), None, "machine has no 'clocks_mhz'"),
        (("versions",), {}, "versions is empty"),
        (("revision",), "main", "must be a git revision"),
        (("entries",), [], "entries is missing or empty"),
        ((*E0, "unit"), "", "unit is ''"),
        ((*E0, "value"), float("nan"), "value is nan; it must be a finite number"),
        ((*E0, "value"), "fast", "value is 'fast'"),
        ((*E0, "value"), 300.0, "low <= value <= high does not hold"),
        ((*E0, "high"), None, "'high' is missing"),
        ((*E0, "median"), 1.0, "'median' is not a field"),
        ((*E0, "repeats"), 0, "repeats is 0"),
        ((*E0, "shape", "seqlen"), None, "shape has no 'seqlen'"),
        ((*E0, "shape", "seqlen"), 4096.0, "seqlen is 4096.0; it must be int"),
        ((*E0, "shape", "causal"), 0, "causal is 0; it must be bool"),
    ],
)
def test_a_bad_record_is_refused_in_words(path, value, words):
    with pytest.raises(InvalidRecord) as error:
        validate(changed(path, value), "b200.json")
    assert words in str(error.value) and str(error.value).startswith("b200.json: ")


def test_all_faults_are_listed_at_once():
    raw = changed(("date",), "soon") | {"revision": "main"}
    with pytest.raises(InvalidRecord) as error:
        validate(raw)
    assert len(str(error.value).splitlines()) == 2


def test_modelled_and_published_ask_for_other_things():
    modelled = MEASURED | {
        "provenance": "modelled",
        "source": "ptxemu clock 1",
        "machine": {"name": "B200"},
        "revision": "",
    }
    assert validate(modelled).label == "modelled, B200, ptxemu clock 1"
    with pytest.raises(InvalidRecord, match="does not name the chip"):
        validate(modelled | {"machine": {}})
    published = MEASURED | {
        "provenance": "published",
        "source": "somebody, 2026",
        "url": "https://github.com/IaroslavElistratov/b200-attention",
    }
    assert validate(published).label == "published, somebody, 2026"
    with pytest.raises(InvalidRecord, match="must be an https address"):
        validate(published | {"url": ""})


def test_what_is_no_record_at_all(tmp_path):
    with pytest.raises(InvalidRecord, match="not list"):
        validate([])
    path = tmp_path / "x.json"
    path.write_text("{")
    with pytest.raises(InvalidRecord, match=r"x\.json: not JSON"):
        load(path)


def test_a_bad_record_is_not_written(tmp_path):
    record = validate(MEASURED)
    broken = type(record)(record.provenance, "", record.date, record.entries)
    with pytest.raises(InvalidRecord):
        save(broken, tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists()


def test_every_record_of_the_book_is_good():
    assert results_dir().parts[-2:] == ("book", "results")
    load_all()
